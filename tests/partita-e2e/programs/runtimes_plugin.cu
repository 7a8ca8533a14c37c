// A library with kernels and a runtime of its own, which `runtimes.cu` opens and closes.
#include <cuda_runtime.h>

__device__ int total;
__constant__ int factor = 1;

__global__ void add(int *data, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += by * factor;
    if (i == 0) atomicAdd(&total, by);
}

// Adds to the program's memory in the program's stream after the program's event, and in a stream of its own.  Answers with
// the sum of what it was ever called with since it was loaded, negative where something failed.
extern "C" int plug(int *data, int n, int by, cudaStream_t stream, cudaEvent_t event) {
    cudaStream_t own;
    cudaEvent_t done;
    int sum = -1, two = 2;
    bool well = cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking) == cudaSuccess &&
                cudaEventCreateWithFlags(&done, cudaEventDisableTiming) == cudaSuccess &&
                cudaMemcpyToSymbolAsync(factor, &two, sizeof two, 0, cudaMemcpyHostToDevice, own) == cudaSuccess &&
                cudaStreamWaitEvent(own, event, 0) == cudaSuccess;
    add<<<(n + 255) / 256, 256, 0, own>>>(data, n, by);
    well = well && cudaEventRecord(done, own) == cudaSuccess && cudaStreamWaitEvent(stream, done, 0) == cudaSuccess;
    add<<<(n + 255) / 256, 256, 0, stream>>>(data, n, by);
    well = well && cudaMemcpyFromSymbolAsync(&sum, total, sizeof sum, 0, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess && cudaStreamDestroy(own) == cudaSuccess &&
           cudaEventDestroy(done) == cudaSuccess;
    return well ? sum : -static_cast<int>(cudaGetLastError()) - 1;
}

extern "C" int plugVersion() {
    int version = 0;
    return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : -1;
}
