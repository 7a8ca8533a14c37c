// Asynchronous copies from global to shared memory (compute capability 8.0): a tiled product whose next tile is on its
// way while the present one is used.
// nvcc: -arch=sm_80
#include <cuda_pipeline.h>

#include "check.h"

const int TILE = 32, STAGES = 3, N = 160;

__global__ void product(const float *a, const float *b, float *c) {
    __shared__ __align__(16) float tileA[STAGES][TILE][TILE], tileB[STAGES][TILE][TILE];
    int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    int line = threadIdx.y * 4, four = threadIdx.x * 4;  // 8 x 8 threads
    auto load = [&](int stage, int tile) {
        for (int k = 0; k < 4; k++) {
            __pipeline_memcpy_async(&tileA[stage][line + k][four], &a[(row0 + line + k) * N + tile * TILE + four], 16);
            __pipeline_memcpy_async(&tileB[stage][line + k][four], &b[(tile * TILE + line + k) * N + column0 + four], 16);
        }
    };
    const int tiles = N / TILE;
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < tiles) load(stage, stage);
        __pipeline_commit();
    }
    float sums[4][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads();
        int next = tile + STAGES - 1;
        if (next < tiles) load(next % STAGES, next);
        __pipeline_commit();
        int stage = tile % STAGES;
        for (int inner = 0; inner < TILE; inner++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] += tileA[stage][line + i][inner] * tileB[stage][inner][four + j];
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) c[(row0 + line + i) * N + column0 + four + j] = sums[i][j];
}

int main() {
    Random random;
    std::vector<float> a(N * N), b(N * N);
    // Whole numbers: sums below 2^24 are exact in any order.
    for (float &value : a) value = static_cast<float>(random.below(201)) - 100.0f;
    for (float &value : b) value = static_cast<float>(random.below(201)) - 100.0f;
    float *c = blank<float>(N * N);
    product<<<dim3(N / TILE, N / TILE), dim3(8, 8)>>>(upload(a), upload(b), c);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(c, N * N);
    long long checksum = 0;
    for (int row = 0; row < N; row++)
        for (int column = 0; column < N; column++) {
            long expected = 0;
            for (int k = 0; k < N; k++) expected += static_cast<long>(a[row * N + k]) * static_cast<long>(b[k * N + column]);
            checksum += expected;
            expect(found[row * N + column] == static_cast<float>(expected), "(%d, %d): %g, expected %ld", row, column,
                   found[row * N + column], expected);
        }
    std::printf("pipeline n=%d sum=%lld\n", N, checksum);
    return verdict();
}
