// Matrix product with `mma.sync` and `ldmatrix` written out as inline PTX, the way hand-tuned libraries do it: each warp
// multiplies a 16 x 16 by a 16 x 8 tile of half precision with float sums.
// nvcc: -arch=sm_80
#include <cuda_fp16.h>

#include "check.h"

const int M = 64, N = 64, K = 96, WARPS = 4;

__device__ uint32_t sharedAddress(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A row-major M x K, B row-major K x N, C row-major M x N.
__global__ void product(const half *a, const half *b, float *c) {
    __shared__ __align__(16) half tileA[16][16 + 8];
    __shared__ __align__(16) half tileB[16][WARPS * 8 + 8];
    int row0 = blockIdx.y * 16, column0 = blockIdx.x * WARPS * 8;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[4] = {0, 0, 0, 0};
    for (int k0 = 0; k0 < K; k0 += 16) {
        for (int i = threadIdx.x; i < 16 * 16; i += blockDim.x)
            tileA[i / 16][i % 16] = a[(row0 + i / 16) * K + k0 + i % 16];
        for (int i = threadIdx.x; i < 16 * WARPS * 8; i += blockDim.x)
            tileB[i / (WARPS * 8)][i % (WARPS * 8)] = b[(k0 + i / (WARPS * 8)) * N + column0 + i % (WARPS * 8)];
        __syncthreads();
        uint32_t fragmentA[4], fragmentB[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fragmentA[0]), "=r"(fragmentA[1]), "=r"(fragmentA[2]), "=r"(fragmentA[3])
                     : "r"(sharedAddress(&tileA[lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(fragmentB[0]), "=r"(fragmentB[1])
                     : "r"(sharedAddress(&tileB[lane % 16][warp * 8])));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(fragmentA[0]), "r"(fragmentA[1]), "r"(fragmentA[2]), "r"(fragmentA[3]), "r"(fragmentB[0]),
                       "r"(fragmentB[1]));
        __syncthreads();
    }
    int row = row0 + lane / 4, column = column0 + warp * 8 + lane % 4 * 2;
    c[row * N + column] = sums[0];
    c[row * N + column + 1] = sums[1];
    c[(row + 8) * N + column] = sums[2];
    c[(row + 8) * N + column + 1] = sums[3];
}

int main() {
    Random random;
    std::vector<half> a(M * K), b(K * N);
    std::vector<double> realA(M * K), realB(K * N);
    // Multiples of 1/64 and 1/16 below 8: products and sums are exact in float.
    for (int i = 0; i < M * K; i++) a[i] = __float2half(static_cast<float>(realA[i] = (random.below(1025) - 512.0) / 64));
    for (int i = 0; i < K * N; i++) b[i] = __float2half(static_cast<float>(realB[i] = (random.below(129) - 64.0) / 16));
    float *c = blank<float>(M * N);
    product<<<dim3(N / (WARPS * 8), M / 16), WARPS * 32>>>(upload(a), upload(b), c);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(c, M * N);
    double checksum = 0;
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            double expected = 0;
            for (int k = 0; k < K; k++) expected += realA[row * K + k] * realB[k * N + column];
            checksum += expected;
            expect(found[row * N + column] == expected, "(%d, %d): %g, expected %g", row, column, found[row * N + column],
                   expected);
        }
    std::printf("mma %dx%dx%d sum=%.4f\n", M, N, K, checksum);
    return verdict();
}
