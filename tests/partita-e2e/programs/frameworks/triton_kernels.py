"""Triton without torch, its memory taken from the driver: kernels are compiled while the program runs."""
import ctypes

import numpy as np
import triton
import triton.language as tl

cuda = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, f"CUDA error {result}"


class Array:
    """What Triton wants of a tensor: an address and a type."""

    def __init__(self, values):
        self.values, self.dtype = values, {"float32": "fp32", "float16": "fp16"}[values.dtype.name]
        self.address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(values.nbytes)))
        check(cuda.cuMemcpyHtoD_v2(self.address, self.host(), ctypes.c_size_t(values.nbytes)))

    def host(self):
        return self.values.ctypes.data_as(ctypes.c_void_p)

    def data_ptr(self):
        return self.address.value

    def read(self):
        check(cuda.cuMemcpyDtoH_v2(self.host(), self.address, ctypes.c_size_t(self.values.nbytes)))
        return self.values


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(z + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0) * columns
    values = tl.load(x + row + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row + at, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :], mask=(rows[:, None] < M) & ((k + inner)[None, :] < K), other=0.0)
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :], mask=((k + inner)[:, None] < K) & (columns[None, :] < N), other=0.0)
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
random = np.random.default_rng(5)

n = 10_007
x, y = random.random(n, dtype=np.float32), random.random(n, dtype=np.float32)
z = Array(np.zeros(n, np.float32))
add[(triton.cdiv(n, 256),)](Array(x), Array(y), z, n, BLOCK=256)
assert np.array_equal(z.read(), x + y)

rows, columns = 37, 501
x = random.random((rows, columns), dtype=np.float32) * 10
y = Array(np.zeros_like(x))
softmax[(rows,)](Array(x), y, columns, BLOCK=512)
powers = np.exp(x - x.max(axis=1, keepdims=True))
assert np.allclose(y.read(), powers / powers.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)

# Blocks of 64 rows are products of warp groups where the GPU has them.
M, N, K = 170, 150, 190
a, b = random.random((M, K), dtype=np.float32).astype(np.float16), random.random((K, N), dtype=np.float32).astype(np.float16)
for BM, BN, BK in [(32, 32, 32), (64, 64, 32), (128, 64, 64)]:
    c = Array(np.zeros((M, N), np.float32))
    compiled = matmul[(triton.cdiv(M, BM), triton.cdiv(N, BN))](Array(a), Array(b), c, M, N, K, BM=BM, BN=BN, BK=BK)
    assert np.allclose(c.read(), a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3, atol=1e-3)
    print(f"blocks of {BM} by {BN}:", "wgmma" if "wgmma" in compiled.asm["ptx"] else "mma")
print("PASSED")
