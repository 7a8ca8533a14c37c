// A failed assertion in a kernel: the message on stderr, cudaErrorAssert at the next synchronisation, and from then on.
#include <cassert>

#include "check.h"

__global__ void verify(const int *data, int limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(data[i] < limit);
}

int main() {
    std::vector<int> values(128);
    for (int i = 0; i < 128; i++) values[i] = i;
    int *data = upload(values);
    verify<<<4, 32>>>(data, 128);
    CHECK(cudaDeviceSynchronize());
    verify<<<4, 32>>>(data, 100);
    cudaError_t error = cudaDeviceSynchronize();
    expect(error == cudaErrorAssert, "%s, expected cudaErrorAssert", cudaGetErrorName(error));
    error = cudaMemset(data, 0, 4);
    expect(error == cudaErrorAssert, "afterwards %s, expected cudaErrorAssert", cudaGetErrorName(error));
    std::printf("assert %s\n", cudaGetErrorName(error));
    return verdict();
}
