// Kernels without parameters, which know their data by name alone; one does nothing.
#include "check.h"

__device__ unsigned int cells[1000], generation;

__global__ void nothing() {}

__global__ void fill() {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 1000) cells[i] = i * i;
    if (i == 0) generation = 1;
}

__global__ void step() {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 1000) cells[i] = cells[i] * 5 + generation;
}

__global__ void age() { generation++; }

int main() {
    nothing<<<1, 1>>>();
    fill<<<10, 100>>>();
    for (int i = 0; i < 20; i++) {
        step<<<8, 128>>>();
        nothing<<<100, 1024>>>();
        age<<<1, 1>>>();
    }
    CHECK(cudaGetLastError());
    std::vector<unsigned int> found(1000);
    CHECK(cudaMemcpyFromSymbol(found.data(), cells, sizeof cells));
    for (unsigned int i = 0; i < 1000; i++) {
        unsigned int expected = i * i;
        for (unsigned int g = 1; g <= 20; g++) expected = expected * 5 + g;
        expect(found[i] == expected, "%u: %u, expected %u", i, found[i], expected);
    }
    std::printf("no_parameters cells[999]=%u\n", found[999]);
    return verdict();
}
