// Launches and calls that must be refused, with CUDA's own errors, and a program that goes on after them.
#include "check.h"

__global__ void touch(int *data) { data[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

__global__ void __launch_bounds__(64) narrow(int *data) { data[threadIdx.x] += 1; }

void refused(const char *what, cudaError_t expected) {
    cudaError_t error = cudaGetLastError();
    expect(error == expected, "%s: %s, expected %s", what, cudaGetErrorName(error), cudaGetErrorName(expected));
    expect(cudaGetLastError() == cudaSuccess, "%s: the error stays", what);
}

int main() {
    int *data = upload(std::vector<int>(2048, 0));
    touch<<<1, 1025>>>(data);
    refused("1025 threads", cudaErrorInvalidConfiguration);
    touch<<<1, dim3(1, 1, 65)>>>(data);
    refused("65 threads in z", cudaErrorInvalidConfiguration);
    touch<<<0, 32>>>(data);
    refused("no blocks", cudaErrorInvalidConfiguration);
    touch<<<1, 0>>>(data);
    refused("no threads", cudaErrorInvalidConfiguration);
    touch<<<dim3(1, 65536), 1>>>(data);
    refused("65536 blocks in y", cudaErrorInvalidConfiguration);
    touch<<<1, 32, 1 << 20>>>(data);
    refused("a megabyte of shared memory", cudaErrorInvalidValue);
    narrow<<<1, 128>>>(data);
    refused("beyond the launch bounds", cudaErrorInvalidValue);

    void *pointer = nullptr;
    expect(cudaMalloc(&pointer, ~0ull >> 4) == cudaErrorMemoryAllocation, "an exabyte was allocated");
    refused("an exabyte", cudaErrorMemoryAllocation);
    expect(cudaMalloc(nullptr, 16) == cudaErrorInvalidValue, "a null pointer for the result");
    cudaGetLastError();
    expect(cudaMemcpy(data, nullptr, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue, "a copy from null");
    cudaGetLastError();
    expect(cudaFree(nullptr) == cudaSuccess, "freeing null does nothing");
    expect(cudaFree(data + 1) == cudaErrorInvalidValue, "freeing what was not allocated");
    cudaGetLastError();
    expect(cudaSetDevice(99) == cudaErrorInvalidDevice, "device 99");
    cudaGetLastError();
    int count = 0;
    CHECK(cudaGetDeviceCount(&count));
    expect(count >= 1, "%d devices", count);

    // None of them has run or stuck.
    touch<<<2, 1024>>>(data);
    narrow<<<1, 64>>>(data);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::vector<int> found = download(data, 2048);
    for (int i = 0; i < 2048; i++) expect(found[i] == 1 + (i < 64), "%d: %d", i, found[i]);
    std::printf("launch_errors devices=%d\n", count);
    return verdict();
}
