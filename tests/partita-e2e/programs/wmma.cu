// Matrix product on tensor cores through nvcuda::wmma: half operands, float and half accumulators, and 8-bit integers.
#include <cuda_fp16.h>
#include <mma.h>

#include "check.h"

using namespace nvcuda;

const int M = 64, N = 96, K = 80;

// One warp computes a 16 x 16 tile of C; A is row-major, B column-major.
template <class In, class Sum>
__global__ void product(const In *a, const In *b, Sum *c) {
    int row = blockIdx.y * 16, column = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 16;
    if (column >= N) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, In, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, In, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, Sum> sum;
    wmma::fill_fragment(sum, Sum(0));
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(left, a + row * K + k, K);
        wmma::load_matrix_sync(right, b + column * K + k, K);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = sum.x[i] + Sum(1);
    wmma::store_matrix_sync(c + row * N + column, sum, N, wmma::mem_row_major);
}

template <class In, class Sum>
void run(const char *name, double tolerance) {
    Random random;
    std::vector<In> a(M * K), b(K * N);
    std::vector<double> realA(M * K), realB(K * N);
    // Small whole numbers and halves: every product and sum is exact in float and in int.
    for (int i = 0; i < M * K; i++) a[i] = In(static_cast<int>(realA[i] = static_cast<int>(random.below(17)) - 8));
    for (int i = 0; i < K * N; i++) b[i] = In(static_cast<int>(realB[i] = static_cast<int>(random.below(9)) - 4));
    Sum *c = blank<Sum>(M * N);
    product<In, Sum><<<dim3((N / 16 + 3) / 4, M / 16), 128>>>(upload(a), upload(b), c);
    CHECK(cudaGetLastError());
    std::vector<Sum> found = download(c, M * N);
    double checksum = 0;
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            double expected = 1;
            for (int k = 0; k < K; k++) expected += realA[row * K + k] * realB[column * K + k];
            double actual = static_cast<double>(static_cast<float>(found[row * N + column]));
            checksum += actual;
            expect(std::fabs(actual - expected) <= tolerance, "%s (%d, %d): %g, expected %g", name, row, column, actual,
                   expected);
        }
    std::printf("wmma %s sum=%.0f\n", name, checksum);
}

int main() {
    run<half, float>("f16 to f32", 0);
    run<half, half>("f16 to f16", 0);  // below 2048 whole numbers are exact in half; the sums stay below 1000
    run<signed char, int>("s8 to s32", 0);
    return verdict();
}
