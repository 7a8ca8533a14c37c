// A matrix product as Blackwell's libraries make it: one warp copies tiles by tensor maps into a ring of stages, one thread
// multiplies them by `tcgen05.mma` into tensor memory, and four warps read the result; mbarriers pass the stages to and fro.
// The last tiles reach beyond the matrices.
// nvcc: -gencode arch=compute_100a,code=compute_100a
#include <cuda.h>
#include <cuda_fp16.h>

#include "check.h"

const int BM = 128, BN = 32, BK = 64, STAGES = 2, COLUMNS = 32;
const int M = 200, N = 136, K = 328;

__device__ uint32_t place(const void *shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

__device__ void wait(const uint64_t *barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(
            place(barrier)),
        "r"(parity)
        : "memory");
}

__device__ void copy(void *tile, const CUtensorMap *map, int x, int y, const uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(place(tile)), "l"(map), "r"(x), "r"(y), "r"(place(barrier))
                 : "memory");
}

// Rows of 128 bytes, swizzled; eight rows are 1,024 bytes.
__device__ uint64_t descriptor(const void *tile) {
    return (place(tile) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 46 | uint64_t(2) << 61;
}

__device__ void multiply(uint32_t d, uint64_t a, uint64_t b, bool add) {
    // f32 from f16 and f16, M of 128 and N of 32.
    const uint32_t instruction = 1 << 4 | (BN / 8) << 17 | (BM / 16) << 24;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(instruction), "r"(uint32_t(add))
                 : "memory");
}

__device__ void commit(const uint64_t *barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(place(barrier))
                 : "memory");
}

__device__ void load(float (&d)[16], uint32_t from) {
    uint32_t r[16];
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
        "\ntcgen05.wait::ld.sync.aligned;"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]),
          "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15])
        : "r"(from));
    for (int i = 0; i < 16; i++) d[i] = __uint_as_float(r[i]);
}

__global__ void __launch_bounds__(192)
    product(const __grid_constant__ CUtensorMap ofA, const __grid_constant__ CUtensorMap ofB, float *c) {
    __shared__ alignas(1024) __half tileA[STAGES][BM * BK], tileB[STAGES][BN * BK];
    __shared__ uint64_t full[STAGES], empty[STAGES], done;
    __shared__ uint32_t columns;
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN, tiles = (K + BK - 1) / BK, warp = threadIdx.x / 32;
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(place(&columns)), "n"(COLUMNS)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&full[stage])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&empty[stage])) : "memory");
        }
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&done)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const uint32_t d = columns;
    if (warp == 4) {
        if (threadIdx.x % 32 == 0) {
            for (int tile = 0; tile < tiles; tile++) {
                int stage = tile % STAGES;
                if (tile >= STAGES) wait(&empty[stage], (tile / STAGES - 1) & 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(&full[stage])),
                             "r"(2 * (BM + BN) * BK)
                             : "memory");
                copy(tileA[stage], &ofA, tile * BK, row0, &full[stage]);
                copy(tileB[stage], &ofB, tile * BK, column0, &full[stage]);
            }
        }
    } else if (warp == 5) {
        if (threadIdx.x % 32 == 0) {
            for (int tile = 0; tile < tiles; tile++) {
                int stage = tile % STAGES;
                wait(&full[stage], (tile / STAGES) & 1);
                asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
                for (int k = 0; k < BK / 16; k++) {
                    multiply(d, descriptor(&tileA[stage][16 * k]), descriptor(&tileB[stage][16 * k]), tile > 0 || k > 0);
                }
                commit(&empty[stage]);
            }
            commit(&done);
        }
    } else {
        wait(&done, 0);
        asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
        int row = row0 + threadIdx.x;
        for (int first = 0; first < BN; first += 16) {
            float values[16];
            load(values, d + (uint32_t(warp) << 21) + first);
            for (int i = 0; i < 16; i++) {
                int column = column0 + first + i;
                if (row < M && column < N) c[row * N + column] = values[i];
            }
        }
        asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    }
    __syncthreads();
    if (warp == 0) {
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(d), "n"(COLUMNS));
    }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

static CUtensorMap map(Encode encode, __half *matrix, int rows, int tile) {
    CUtensorMap map;
    cuuint64_t extents[] = {K, cuuint64_t(rows)}, strides[] = {K * sizeof(__half)};
    cuuint32_t box[] = {BK, cuuint32_t(tile)}, steps[] = {1, 1};
    CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, matrix, extents, strides, box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    expect(result == CUDA_SUCCESS, "a tensor map: error %d", result);
    return map;
}

int main() {
    Encode encode;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void **>(&encode), 12000,
                                           cudaEnableDefault, &found));
    Random random;
    std::vector<__half> a(M * K), b(N * K);
    for (__half &value : a) value = __float2half(int(random.below(9)) - 4);
    for (__half &value : b) value = __float2half(int(random.below(9)) - 4);
    __half *deviceA = upload(a), *deviceB = upload(b);
    float *deviceC = upload(std::vector<float>(M * N, -1.0f));
    CUtensorMap ofA = map(encode, deviceA, M, BM), ofB = map(encode, deviceB, N, BN);
    product<<<dim3((N + BN - 1) / BN, (M + BM - 1) / BM), 192>>>(ofA, ofB, deviceC);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::vector<float> c = download(deviceC, M * N);
    for (int row = 0; row < M; row++) {
        for (int column = 0; column < N; column++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += __half2float(a[row * K + k]) * __half2float(b[column * K + k]);
            expect(c[row * N + column] == sum, "(%d, %d) is %g and not %g", row, column, c[row * N + column], sum);
        }
    }
    std::printf("blackwell_gemm %d x %d x %d, first element %g\n", M, N, K, c[0]);
    return verdict();
}
