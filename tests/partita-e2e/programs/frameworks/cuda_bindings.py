"""NVIDIA's own Python bindings: NVRTC makes PTX, the driver's API launches it in a stream."""
import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = rb"""
extern "C" __global__ void twice(int* values, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] *= 2;
}
"""


def done(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


program = done(nvrtc.nvrtcCreateProgram(SOURCE, b"twice.cu", 0, [], []))
done(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
ptx = b" " * done(nvrtc.nvrtcGetPTXSize(program))
done(nvrtc.nvrtcGetPTX(program, ptx))

done(driver.cuInit(0))
device = done(driver.cuDeviceGet(0))
done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(device))))
kernel = done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(ptx)), b"twice"))
stream = done(driver.cuStreamCreate(0))

count = 1000
values = np.arange(count, dtype=np.int32)
memory = done(driver.cuMemAlloc(values.nbytes))
done(driver.cuMemcpyHtoDAsync(memory, values.ctypes.data, values.nbytes, stream))
address, number = np.array([int(memory)], dtype=np.uint64), np.array([count], dtype=np.int32)
params = np.array([address.ctypes.data, number.ctypes.data], dtype=np.uint64)
done(driver.cuLaunchKernel(kernel, 4, 1, 1, 256, 1, 1, 0, stream, params.ctypes.data, 0))
found = np.zeros_like(values)
done(driver.cuMemcpyDtoHAsync(found.ctypes.data, memory, values.nbytes, stream))
done(driver.cuStreamSynchronize(stream))
assert np.array_equal(found, values * 2)
done(driver.cuMemFree(memory))
print("PASSED")
