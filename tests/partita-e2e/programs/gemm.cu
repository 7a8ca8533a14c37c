// C = alpha A B + beta C with tiles in shared memory; each thread computes a 4 x 4 block of C in registers.
#include "check.h"

const int TILE = 64, DEPTH = 16, EACH = 4, SIDE = TILE / EACH;

__global__ void __launch_bounds__(SIDE *SIDE)
    gemm(int m, int n, int k, float alpha, const float *a, const float *b, float beta, float *c) {
    __shared__ float tileA[DEPTH][TILE], tileB[DEPTH][TILE];
    int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    int thread = threadIdx.y * SIDE + threadIdx.x;
    float sums[EACH][EACH] = {};
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += SIDE * SIDE) {
            int row = row0 + i / DEPTH, inner = k0 + i % DEPTH;
            tileA[i % DEPTH][i / DEPTH] = row < m && inner < k ? a[row * k + inner] : 0.0f;
            int column = column0 + i % TILE;
            inner = k0 + i / TILE;
            tileB[i / TILE][i % TILE] = column < n && inner < k ? b[inner * n + column] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int inner = 0; inner < DEPTH; inner++) {
            float left[EACH], right[EACH];
            for (int i = 0; i < EACH; i++) {
                left[i] = tileA[inner][threadIdx.y * EACH + i];
                right[i] = tileB[inner][threadIdx.x * EACH + i];
            }
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) sums[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int row = row0 + threadIdx.y * EACH + i, column = column0 + threadIdx.x * EACH + j;
            if (row < m && column < n) c[row * n + column] = alpha * sums[i][j] + beta * c[row * n + column];
        }
}

int main() {
    const int m = 200, n = 171, k = 133;
    const float alpha = 1.5f, beta = -0.5f;
    Random random;
    std::vector<float> a(m * k), b(k * n), c(m * n);
    for (float &value : a) value = random.unit() - 0.5f;
    for (float &value : b) value = random.unit() - 0.5f;
    for (float &value : c) value = random.unit();
    float *dc = upload(c);
    dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE), block(SIDE, SIDE);
    gemm<<<grid, block>>>(m, n, k, alpha, upload(a), upload(b), beta, dc);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(dc, m * n);
    double worst = 0;
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            double sum = 0;
            for (int inner = 0; inner < k; inner++)
                sum += static_cast<double>(a[row * k + inner]) * b[inner * n + column];
            double expected = alpha * sum + beta * c[row * n + column], actual = found[row * n + column];
            worst = std::fmax(worst, std::fabs(actual - expected));
            // k roundings of sums below k/4: 133 * 33 * 2^-24 = 2.6e-4 at the very worst, in practice a tenth of that.
            expect(std::fabs(actual - expected) < 1e-4, "(%d, %d): %g, expected %g", row, column, actual, expected);
        }
    std::printf("gemm %dx%dx%d worst error below 1e-5: %s\n", m, n, k, worst < 1e-5 ? "yes" : "no");
    return verdict();
}
