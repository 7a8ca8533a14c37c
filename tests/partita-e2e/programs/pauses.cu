// A program that computes on the host between short kernels: usage: pauses ROUNDS MILLISECONDS. Prints the device time
// from its first kernel to its last.
#include <chrono>
#include <thread>

#include "check.h"

__global__ void twice(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 2;
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 10, milliseconds = argc > 2 ? std::atoi(argv[2]) : 0;
    const int n = 10000;
    std::vector<int> host(n, 1);
    int *data = upload(host);
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(begin));
    for (int round = 0; round < rounds; round++) {
        twice<<<(n + 255) / 256, 256>>>(data, n);
        CHECK(cudaDeviceSynchronize());
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float elapsed = 0;
    CHECK(cudaEventElapsedTime(&elapsed, begin, end));
    host = download(data, n);
    for (int i = 0; i < n; i++) expect(host[i] == 1 << rounds, "%d: %d", i, host[i]);
    std::printf("pauses rounds=%d: %.3f us\n", rounds, elapsed * 1000);
    return verdict();
}
