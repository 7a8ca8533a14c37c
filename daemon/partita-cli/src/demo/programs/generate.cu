// Follows a linear congruential generator from many seeds: arithmetic in registers, and one access to memory at the end.
// Each launch does all seeds many times. Usage: generate [LAUNCHES]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t error = (call);                                                     \
        if (error != cudaSuccess) {                                                     \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));         \
            std::exit(1);                                                               \
        }                                                                               \
    } while (0)

__host__ __device__ inline uint32_t follow(uint32_t x) {
    for (int k = 0; k < 64; k++) x = (x ^ (x >> 7)) * 1664525u + 1013904223u;
    return x;
}

__global__ void generate(uint32_t *out, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) % n;
    out[i] = follow(i);
}

int main(int argc, char **argv) {
    int launches = argc > 1 ? std::atoi(argv[1]) : 1;
    const int n = 1 << 18, sweeps = 32;
    std::vector<uint32_t> out(n);
    uint32_t *device;
    CHECK(cudaMalloc(&device, n * sizeof(uint32_t)));
    for (int k = 0; k < launches; k++) generate<<<sweeps * n / 256, 256>>>(device, n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out.data(), device, n * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        if (out[i] != follow(i)) {
            std::printf("WRONG at %d\n", i);
            return 1;
        }
    std::printf("RIGHT\n");
    return 0;
}
