// Matrix product on tensor cores of compute capability 8.0 through nvcuda::wmma: bf16, tf32 and double operands.
// nvcc: -arch=sm_80
#include <cuda_bf16.h>
#include <mma.h>

#include "check.h"

using namespace nvcuda;

const int M = 48, N = 32, K = 64;

template <class In, class Stored, class Sum, int ROWS, int COLUMNS, int DEPTH>
__global__ void product(const Stored *a, const Stored *b, Sum *c) {
    int row = blockIdx.y * ROWS, column = blockIdx.x * COLUMNS;
    wmma::fragment<wmma::matrix_a, ROWS, COLUMNS, DEPTH, In, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, ROWS, COLUMNS, DEPTH, In, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, ROWS, COLUMNS, DEPTH, Sum> sum;
    wmma::fill_fragment(sum, Sum(0));
    for (int k = 0; k < K; k += DEPTH) {
        wmma::load_matrix_sync(left, a + row * K + k, K);
        wmma::load_matrix_sync(right, b + k * N + column, N);
        if constexpr (std::is_same_v<In, wmma::precision::tf32>) {
            for (int i = 0; i < left.num_elements; i++) left.x[i] = wmma::__float_to_tf32(left.x[i]);
            for (int i = 0; i < right.num_elements; i++) right.x[i] = wmma::__float_to_tf32(right.x[i]);
        }
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row + column * M, sum, M, wmma::mem_col_major);
}

template <class In, class Stored, class Sum, int ROWS, int COLUMNS, int DEPTH>
void run(const char *name, double scale, double tolerance) {
    Random random;
    std::vector<Stored> a(M * K), b(K * N);
    for (Stored &value : a) value = Stored(static_cast<float>((random.below(513) - 256.0) * scale));
    for (Stored &value : b) value = Stored(static_cast<float>((random.below(257) - 128.0) * scale));
    Sum *c = blank<Sum>(M * N);
    product<In, Stored, Sum, ROWS, COLUMNS, DEPTH><<<dim3(N / COLUMNS, M / ROWS), 32>>>(upload(a), upload(b), c);
    CHECK(cudaGetLastError());
    std::vector<Sum> found = download(c, M * N);
    double checksum = 0;
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            double expected = 0;
            for (int k = 0; k < K; k++)
                expected += static_cast<double>(static_cast<float>(a[row * K + k])) * static_cast<float>(b[k * N + column]);
            double actual = found[row + column * M];
            checksum += actual;
            expect(std::fabs(actual - expected) <= tolerance, "%s (%d, %d): %.12g, expected %.12g", name, row, column,
                   actual, expected);
        }
    std::printf("wmma80 %s sum=%.6g\n", name, checksum);
}

int main() {
    // Whole numbers up to 256, which bf16 and tf32 hold, and sums below 2^24: exact.
    run<__nv_bfloat16, __nv_bfloat16, float, 16, 16, 16>("bf16", 1, 0);
    run<wmma::precision::tf32, float, float, 16, 16, 8>("tf32", 1, 0);
    // Thirds of them: 64 roundings of sums below 2^18, so 64 * 2^-35 = 2e-9 at the very worst.
    run<double, double, double, 8, 8, 4>("f64", 1.0 / 3, 1e-8);
    return verdict();
}
