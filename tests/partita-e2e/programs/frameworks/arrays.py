"""What the Triton programs share: arrays in the memory of the GPU without torch, and the numbers that numpy lacks."""
import ctypes

import numpy as np

cuda = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, f"CUDA error {result}"


class Type:
    """An element type as torch has it: Triton asks for its text, and tensor descriptors for its size."""

    def __init__(self, name, itemsize):
        self.name, self.itemsize, self.is_floating_point = name, itemsize, "int" not in name

    def __str__(self):
        return self.name


types = {name: Type(name, size) for name, size in [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8e4nv", 1),
                                                   ("float8e5", 1), ("int8", 1), ("int32", 4), ("int64", 8)]}


class Array:
    """What Triton wants of a tensor: an address, a type, and for descriptors a shape and strides."""

    def __init__(self, values, type_name=None):
        self.values, self.dtype = np.ascontiguousarray(values), types[type_name or values.dtype.name]
        self.shape = self.values.shape
        self.address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(self.values.nbytes)))
        check(cuda.cuMemcpyHtoD_v2(self.address, self.host(), ctypes.c_size_t(self.values.nbytes)))

    def host(self):
        return self.values.ctypes.data_as(ctypes.c_void_p)

    def data_ptr(self):
        return self.address.value

    def stride(self):
        return [bytes_apart // self.values.itemsize for bytes_apart in self.values.strides]

    def read(self):
        check(cuda.cuMemcpyDtoH_v2(self.host(), self.address, ctypes.c_size_t(self.values.nbytes)))
        return self.values


def zeros(*shape, type=np.float32):
    return Array(np.zeros(shape, type))


def allocate(size, alignment, stream):
    """The memory that a kernel wants for the descriptors it makes itself (for `triton.set_allocator`)."""
    return Array(np.zeros(size, np.int8))


def bfloat16(values):
    """The bits of the nearest bfloat16 (ties to even)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_float8(codes, mantissa, bias):
    """The value of each code of an 8-bit float. Infinities and NaNs are not looked at."""
    exponent, fraction = (codes & 127) >> mantissa, (codes & ((1 << mantissa) - 1)).astype(np.float32) / (1 << mantissa)
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * np.exp2(exponent.astype(np.float32) - bias))
    return np.where(codes & 128, -size, size).astype(np.float32)


def start():
    """Makes the context of the process, as torch does when it is first asked for a tensor on the GPU."""
    check(cuda.cuInit(0))
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))


def close(found, wanted, tolerance, what):
    """Compares by the largest error relative to the largest value wanted: sums of half precision cancel."""
    error = np.abs(found.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"{what}: off by {error:.2e} of the largest value"


def instructions(compiled):
    """Which instructions the products and the copies of a kernel are."""
    text = compiled.asm["ptx"]
    product = "wgmma" if "wgmma.mma_async" in text else "mma" if "mma.sync" in text else "no product"
    copies = "cp.async.bulk.tensor" if "cp.async.bulk.tensor" in text else "cp.async" if "cp.async." in text else "ld"
    return f"{product}, {copies}" + (", specialised warps" if "setmaxnreg" in text else "")
