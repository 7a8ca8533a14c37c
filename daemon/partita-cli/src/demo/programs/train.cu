// Steps of gradient descent on many weights, one launch a step, as training has them: arithmetic in registers, and two
// accesses to memory for each weight. A launch is some tens of microseconds long. Usage: train [LAUNCHES]
#include <cmath>
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

__host__ __device__ inline float descend(float w, float target) {
    for (int k = 0; k < 128; k++) w = fmaf(-0.01f, fmaf(w, 2.0f, -target), w);
    return w;
}

__global__ void step(float *weights) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    weights[i] = descend(weights[i], i % 97);
}

int main(int argc, char **argv) {
    int launches = argc > 1 ? std::atoi(argv[1]) : 1;
    const int blocks = 576, threads = 256, n = blocks * threads;
    float *device;
    CHECK(cudaMalloc(&device, n * sizeof(float)));
    CHECK(cudaMemset(device, 0, n * sizeof(float)));
    for (int k = 0; k < launches; k++) step<<<blocks, threads>>>(device);
    CHECK(cudaGetLastError());
    std::vector<float> weights(n);
    CHECK(cudaMemcpy(weights.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost));
    // All weights with one target do the same.
    for (int i = 0; i < n; i++) {
        float expected = 0;
        if (i < 97)
            for (int k = 0; k < launches; k++) expected = descend(expected, i);
        else
            expected = weights[i - 97];
        if (weights[i] != expected) {
            std::printf("WRONG at %d\n", i);
            return 1;
        }
    }
    std::printf("RIGHT\n");
    return 0;
}
