// Evaluates a polynomial of high degree at many points in one long-running launch, by Horner's rule in integers modulo
// 2^32, so that host and device agree to the bit.  Usage: poly [POINTS [DEGREE [SEED [held]]]]   (default 1048576 2000 1)
// `held`: the launch evaluates the points again and again, and ends when standard input ends.
#include "held.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        cudaError_t error = (call);                                                                  \
        if (error != cudaSuccess) {                                                                  \
            std::fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,                  \
                         cudaGetErrorName(error), cudaGetErrorString(error));                        \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

__host__ __device__ inline uint32_t evaluate(uint32_t x, uint32_t coefficient, int degree) {
    uint32_t value = coefficient;
    for (int k = 0; k < degree; k++) {
        coefficient = coefficient * 1664525u + 1013904223u;
        value = value * x + coefficient;
    }
    return value;
}

__global__ void poly(uint32_t *out, int points, int degree, uint32_t seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < points) out[i] = evaluate(2u * i + 1u, seed, degree);
}

// Block b evaluates the points of block b mod `blocks`; later rounds return when it is enough.
__global__ void poly_held(uint32_t *out, int points, int degree, uint32_t seed, unsigned blocks, const volatile int *enough) {
    if (blockIdx.x >= blocks && *enough) return;
    int i = blockIdx.x % blocks * blockDim.x + threadIdx.x;
    if (i < points) out[i] = evaluate(2u * i + 1u, seed, degree);
}

int main(int argc, char **argv) {
    int points = argc > 1 ? std::atoi(argv[1]) : 1 << 20;
    int degree = argc > 2 ? std::atoi(argv[2]) : 2000;
    uint32_t seed = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 1;
    if (points < 1 || degree < 0) {
        std::fprintf(stderr, "usage: poly [POINTS [DEGREE [SEED [held]]]], POINTS >= 1, DEGREE >= 0\n");
        return 2;
    }
    size_t bytes = sizeof(uint32_t) * static_cast<size_t>(points);

    uint32_t *device;
    std::vector<uint32_t> out(points, 0xdeadbeefu);
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMemset(device, 0xff, bytes));
    std::printf("poly points=%d degree=%d seed=%u\n", points, degree, seed);
    std::fflush(stdout);
    int blocks = (points + 255) / 256;
    if (argc > 4 && std::strcmp(argv[4], "held") == 0) {
        Hold hold;
        CHECK(cudaHostAlloc(&hold.enough, sizeof(int), cudaHostAllocMapped));
        hold.begin();
        poly_held<<<HELD_BLOCKS, 256>>>(device, points, degree, seed, blocks, hold.enough);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    } else {
        poly<<<blocks, 256>>>(device, points, degree, seed);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(out.data(), device, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device));

    uint64_t sum = 0;
    for (int i = 0; i < points; i++) sum += out[i];
    // The host is slow: it checks at most 4096 points, spread over all CTAs.
    int step = points > 4096 ? points / 4096 : 1;
    for (int i = 0; i < points; i += step) {
        uint32_t expected = evaluate(2u * i + 1u, seed, degree);
        if (out[i] != expected) {
            std::printf("FAILED at %d: %u, expected %u\n", i, out[i], expected);
            return 1;
        }
    }
    std::printf("sum=%llu\nPASSED\n", static_cast<unsigned long long>(sum));
    return 0;
}
