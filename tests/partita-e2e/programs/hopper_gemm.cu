// A matrix product as Hopper's libraries make it: one warp group copies tiles by tensor maps into a ring of stages, the
// other multiplies them by `wgmma`; mbarriers pass the stages to and fro. The last tiles reach beyond the matrices.
// nvcc: -gencode arch=compute_90a,code=compute_90a
#include <cuda.h>
#include <cuda_fp16.h>

#include "check.h"

const int BM = 64, BN = 64, BK = 64, STAGES = 2, GROUP = 128;
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
    return (place(tile) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, "
        "0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(2 * GROUP)
    product(const __grid_constant__ CUtensorMap ofA, const __grid_constant__ CUtensorMap ofB, float *c) {
    __shared__ alignas(1024) __half tileA[STAGES][BM * BK], tileB[STAGES][BN * BK];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN, tiles = (K + BK - 1) / BK;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&full[stage])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place(&empty[stage])), "r"(GROUP) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x >= 32) return;
        uint32_t chosen;
        asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
        if (!chosen) return;
        asm volatile("prefetch.tensormap [%0];" ::"l"(&ofA) : "memory");
        for (int tile = 0; tile < tiles; tile++) {
            int stage = tile % STAGES;
            if (tile >= STAGES) wait(&empty[stage], (tile / STAGES - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(&full[stage])),
                         "r"(2 * (BM + BN) * BK)
                         : "memory");
            copy(tileA[stage], &ofA, tile * BK, row0, &full[stage]);
            copy(tileB[stage], &ofB, tile * BK, column0, &full[stage]);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32] = {};
    for (int tile = 0; tile < tiles; tile++) {
        int stage = tile % STAGES;
        wait(&full[stage], (tile / STAGES) & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < BK / 16; k++) {
            multiply(d, descriptor(&tileA[stage][16 * k]), descriptor(&tileB[stage][16 * k]));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place(&empty[stage])) : "memory");
    }
    int thread = threadIdx.x - GROUP, warp = thread / 32, lane = thread % 32;
    for (int i = 0; i < 32; i++) {
        int row = row0 + 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = column0 + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        if (row < M && column < N) c[row * N + column] = d[i];
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
    product<<<dim3((N + BN - 1) / BN, (M + BM - 1) / BM), 2 * GROUP>>>(ofA, ofB, deviceC);
    CHECK(cudaDeviceSynchronize());
    std::vector<float> c = download(deviceC, M * N);
    for (int row = 0; row < M; row++) {
        for (int column = 0; column < N; column++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += __half2float(a[row * K + k]) * __half2float(b[column * K + k]);
            expect(c[row * N + column] == sum, "(%d, %d) is %g and not %g", row, column, c[row * N + column], sum);
        }
    }
    std::printf("hopper_gemm %d x %d x %d, first element %g\n", M, N, K, c[0]);
    return verdict();
}
