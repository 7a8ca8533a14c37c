// c[i] = a[i] + b[i], checked on the host.  Usage: vecAdd [N]   (default 50000)
#include <cstdio>
#include <cstdlib>
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

__global__ void vecAdd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main(int argc, char **argv) {
    long parsed = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 50000;
    if (parsed < 1 || parsed > 500000000) {
        std::fprintf(stderr, "usage: vecAdd [N], N from 1 to 500000000\n");
        return 2;
    }
    int n = static_cast<int>(parsed);
    size_t bytes = sizeof(float) * static_cast<size_t>(n);

    std::vector<float> a(n), b(n), c(n, -1.0f);
    for (int i = 0; i < n; i++) {
        a[i] = static_cast<float>(i % 1001) * 0.5f;
        b[i] = static_cast<float>(i % 777) - 300.0f;
    }

    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, bytes));
    CHECK(cudaMalloc(&db, bytes));
    CHECK(cudaMalloc(&dc, bytes));
    CHECK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    vecAdd<<<(n + 255) / 256, 256>>>(da, db, dc, n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));

    double sum = 0;
    for (int i = 0; i < n; i++) sum += c[i];
    std::printf("vecAdd n=%d sum=%.1f\n", n, sum);
    for (int i = 0; i < n; i++) {
        if (c[i] != a[i] + b[i]) {
            std::printf("FAILED at %d: %g, expected %g\n", i, c[i], a[i] + b[i]);
            return 1;
        }
    }
    std::printf("PASSED\n");
    return 0;
}
