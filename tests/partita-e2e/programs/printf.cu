// printf in kernels: every kind of argument, text from several blocks, and its number of arguments as the result.
#include "check.h"

__global__ void kinds(const char *text, int *results) {
    results[0] = printf("kernel: %d %5d|%-5d|%05d %u %x %X %o %c\n", -7, 42, 42, 42, 3000000000u, 255, 255, 8, 'z');
    results[1] = printf("kernel: %ld %lld %llu %zu %hd\n", -1l << 40, 1ll << 62, ~0ull, sizeof(int), static_cast<short>(-3));
    results[2] = printf("kernel: %f %.3f %e %g %8.2f|\n", 1.5f, 2.0 / 3.0, 12345.678, 1e-10, -3.14159);
    results[3] = printf("kernel: %s and %s %% %p\n", text, "literal", static_cast<void *>(nullptr));
    results[4] = printf("kernel: nothing\n");
    results[5] = printf("kernel: %*d|%.*f\n", 6, 99, 2, 0.125);
}

__global__ void everyone() {
    if (threadIdx.x % 16 == 0) printf("block %d thread %d says hello\n", blockIdx.x, threadIdx.x);
}

int main() {
    char *text;
    CHECK(cudaMalloc(&text, 16));
    CHECK(cudaMemcpy(text, "device text", 12, cudaMemcpyHostToDevice));
    int *results = blank<int>(6);
    kinds<<<1, 1>>>(text, results);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    // The device's printf returns the number of arguments, not of characters.
    int expected[6] = {9, 5, 5, 3, 0, 4};
    std::vector<int> found = download(results, 6);
    for (int i = 0; i < 6; i++) expect(found[i] == expected[i], "result %d: %d, expected %d", i, found[i], expected[i]);
    everyone<<<3, 32>>>();
    CHECK(cudaDeviceSynchronize());
    std::printf("printf lines=12\n");
    return verdict();
}
