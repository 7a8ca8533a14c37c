// Many host threads use the device at once, each with its own default stream, its own memory and its own errors.
// nvcc: -default-stream per-thread
#include <thread>

#include "check.h"

__global__ void hash(unsigned int *data, int n, unsigned int seed, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned int value = data[i];
    for (int round = 0; round < rounds; round++) value = (value ^ seed) * 2654435761u + i;
    data[i] = value;
}

void work(int thread, int *wrong) {
    const int n = 3000 + 100 * thread, rounds = 6;
    std::vector<unsigned int> data(n), expected(n);
    for (int i = 0; i < n; i++) expected[i] = data[i] = i * (thread + 1);
    unsigned int *device;
    CHECK(cudaMalloc(&device, n * sizeof(unsigned int)));
    for (int repeat = 0; repeat < 5; repeat++) {
        unsigned int seed = thread * 1000 + repeat;
        CHECK(cudaMemcpyAsync(device, data.data(), n * sizeof(unsigned int), cudaMemcpyHostToDevice, cudaStreamPerThread));
        hash<<<(n + 127) / 128, 128>>>(device, n, seed, rounds);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpyAsync(data.data(), device, n * sizeof(unsigned int), cudaMemcpyDeviceToHost, cudaStreamPerThread));
        CHECK(cudaStreamSynchronize(cudaStreamPerThread));
        for (int i = 0; i < n; i++) {
            for (int round = 0; round < rounds; round++) expected[i] = (expected[i] ^ seed) * 2654435761u + i;
            *wrong += data[i] != expected[i];
        }
    }
    // An error of one thread is not another's.
    if (thread % 2 == 1) {
        hash<<<1, 5000>>>(device, n, 0, 1);
        *wrong += cudaGetLastError() != cudaErrorInvalidConfiguration;
    }
    *wrong += cudaGetLastError() != cudaSuccess;
    CHECK(cudaFree(device));
}

int main() {
    const int threads = 32;
    int wrong[threads] = {};
    std::vector<std::thread> running;
    for (int t = 0; t < threads; t++) running.emplace_back(work, t, &wrong[t]);
    for (std::thread &thread : running) thread.join();
    for (int t = 0; t < threads; t++) expect(wrong[t] == 0, "thread %d: %d values", t, wrong[t]);
    std::printf("host_threads threads=%d\n", threads);
    return verdict();
}
