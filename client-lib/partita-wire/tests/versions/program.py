"""The program whose conversation with a daemon `record.py` writes down: calls of many kinds, once each.

usage: LD_PRELOAD=libpartita_cuda.so python3 program.py KERNEL.PTX

It copies nothing to the device, so that its records alone say what comes out; its last copy to the host is the
result. Pauses between calls are no part of the conversation, so every run gives the same records.
"""
import ctypes
import sys

CTAS, THREADS, ROUNDS = 2, 64, 20
cuda = ctypes.CDLL(None)


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        sys.exit(f"program: {name} returned {code}")


def handle():
    return ctypes.c_void_p()


count = CTAS * THREADS
size = ctypes.c_size_t(4 * count)
context, module, kernel, stream, other, event = (handle() for _ in range(6))
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
call("cuModuleLoadData", ctypes.byref(module), open(sys.argv[1], "rb").read())
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
data, copy = ctypes.c_uint64(), ctypes.c_uint64()
call("cuMemAlloc_v2", ctypes.byref(data), size)
call("cuMemAlloc_v2", ctypes.byref(copy), size)
call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuStreamCreate", ctypes.byref(other), 1)
call("cuEventCreate", ctypes.byref(event), 0)
call("cuMemsetD8Async", data, 7, size, stream)
call("cuMemsetD32Async", data, 1234567, ctypes.c_size_t(count // 2), stream)
rounds = ctypes.c_uint32(ROUNDS)
params = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(rounds))
call("cuLaunchKernel", kernel, CTAS, 1, 1, THREADS, 1, 1, 0, stream, params, None)
call("cuEventRecord", event, stream)
call("cuStreamWaitEvent", other, event, 0)
call("cuMemcpyDtoDAsync_v2", copy, data, size, other)
call("cuStreamSynchronize", other)
call("cuEventSynchronize", event)
found = (ctypes.c_uint32 * count)()
call("cuMemcpyDtoH_v2", found, copy, size)
call("cuCtxSynchronize")
call("cuEventDestroy_v2", event)
call("cuStreamDestroy_v2", stream)
call("cuStreamDestroy_v2", other)
call("cuMemFree_v2", data)
call("cuMemFree_v2", copy)
call("cuModuleUnload", module)
