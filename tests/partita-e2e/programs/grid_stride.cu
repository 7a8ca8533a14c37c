// Grid-stride loops: the same kernel gives the same result with any number of blocks and threads, of any size of data.
#include "check.h"

__global__ void saxpy(size_t n, float a, const float *__restrict__ x, float *__restrict__ y) {
    size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = a * x[i] + y[i];
}

int main() {
    const size_t n = 100003;
    std::vector<float> x(n), y(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = static_cast<float>(i % 1000);
        y[i] = static_cast<float>(i % 77) - 38.0f;
    }
    float *dx = upload(x), *dy = upload(y);
    const float a = 1.5f;
    int launches = 0;
    for (int blocks : {1, 3, 64, 782})
        for (int threads : {32, 100, 256, 1024}) {
            if (blocks == 1 && threads < 256) continue;
            saxpy<<<blocks, threads>>>(n, a, dx, dy);
            CHECK(cudaGetLastError());
            launches++;
        }
    saxpy<<<10, 64>>>(0, a, dx, dy);
    saxpy<<<10, 64>>>(1, a, dx, dy);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(dy, n);
    for (size_t i = 0; i < n; i++) {
        // Halves of whole numbers below 2^23: exact.
        float expected = y[i] + 1.5f * x[i] * static_cast<float>(launches + (i == 0));
        expect(found[i] == expected, "%zu: %g, expected %g", i, found[i], expected);
    }
    std::printf("grid_stride n=%zu launches=%d last=%g\n", n, launches, found[n - 1]);
    return verdict();
}
