// Adds scaled vectors, a = b + s c (the triad of STREAM), four elements per thread: three accesses to memory for each
// multiplication. The vectors are far larger than caches, and each launch sweeps over them many times.
// Usage: triad [LAUNCHES]
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

__global__ void triad(float4 *a, const float4 *b, const float4 *c, float s, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) % n;
    float4 x = b[i], y = c[i];
    a[i] = make_float4(x.x + s * y.x, x.y + s * y.y, x.z + s * y.z, x.w + s * y.w);
}

int main(int argc, char **argv) {
    int launches = argc > 1 ? std::atoi(argv[1]) : 1;
    const int n = 1 << 21, quads = n / 4, sweeps = 16;
    const size_t bytes = n * sizeof(float);
    std::vector<float> b(n), c(n), a(n);
    for (int i = 0; i < n; i++) b[i] = i % 1000, c[i] = i % 77;
    float4 *da, *db, *dc;
    CHECK(cudaMalloc(&da, bytes));
    CHECK(cudaMalloc(&db, bytes));
    CHECK(cudaMalloc(&dc, bytes));
    CHECK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dc, c.data(), bytes, cudaMemcpyHostToDevice));
    for (int k = 0; k < launches; k++) triad<<<sweeps * quads / 256, 256>>>(da, db, dc, 3.0f, quads);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(a.data(), da, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        if (a[i] != b[i] + 3.0f * c[i]) {
            std::printf("WRONG at %d\n", i);
            return 1;
        }
    std::printf("RIGHT\n");
    return 0;
}
