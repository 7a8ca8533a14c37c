// Adds scaled vectors, a = b + s c, again and again (the triad of STREAM): three accesses to memory for each
// multiplication. The vectors are far larger than caches. Usage: triad [LAUNCHES]
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

__global__ void triad(float *a, const float *b, const float *c, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = b[i] + s * c[i];
}

int main(int argc, char **argv) {
    int launches = argc > 1 ? std::atoi(argv[1]) : 100;
    const int n = 1 << 21;
    std::vector<float> b(n), c(n), a(n);
    for (int i = 0; i < n; i++) b[i] = i % 1000, c[i] = i % 77;
    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, n * sizeof(float)));
    CHECK(cudaMalloc(&db, n * sizeof(float)));
    CHECK(cudaMalloc(&dc, n * sizeof(float)));
    CHECK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dc, c.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    triad<<<(n + 255) / 256, 256>>>(da, db, dc, 3.0f, n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(a.data(), da, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        if (a[i] != b[i] + 3.0f * c[i]) {
            std::printf("WRONG at %d\n", i);
            return 1;
        }
    std::printf("RIGHT\n");
    std::fflush(stdout);
    for (int k = 0; k < launches; k++) triad<<<(n + 255) / 256, 256>>>(da, db, dc, 3.0f, n);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    return 0;
}
