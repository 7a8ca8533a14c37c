// A sum by shared memory, barriers and atomics. `test_reduce broken` launches a block too few, and must fail.
#include "check.h"
#include <cstring>
#include <vector>

__global__ void sum(int n, const int *values, unsigned long long *total) {
    __shared__ int partial[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? values[i] : 0;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(total, static_cast<unsigned long long>(partial[0]));
}

int main(int argc, char **argv) {
    const int n = 10000;
    // One block too few: the last values are missing.
    const int missing = argc > 1 && std::strcmp(argv[1], "broken") == 0 ? 1 : 0;
    std::vector<int> values(n);
    unsigned long long expected = 0, total = 0, *device_total;
    for (int i = 0; i < n; i++) expected += values[i] = i % 97 + 1;
    int *device;
    CUDA(cudaMalloc(&device, n * sizeof(int)));
    CUDA(cudaMalloc(&device_total, sizeof total));
    CUDA(cudaMemset(device_total, 0, sizeof total));
    CUDA(cudaMemcpy(device, values.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    sum<<<(n + 255) / 256 - missing, 256>>>(n, device, device_total);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&total, device_total, sizeof total, cudaMemcpyDeviceToHost));
    CHECK(total == expected);
    std::puts("ok reduce");
    return 0;
}
