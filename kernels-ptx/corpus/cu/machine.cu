// Source of PTX for the printer's oracle: what only some architectures have, from sm_80 on.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <mma.h>
namespace cg = cooperative_groups;
using namespace nvcuda;

__global__ void grid_sync(int *a) {
    a[blockIdx.x] = 1;
    cg::this_grid().sync();
    a[0] += a[blockIdx.x + 1];
}

__global__ void copies(const float4 *a, float4 *out) {
    __shared__ float4 s[128];
    __pipeline_memcpy_async(&s[threadIdx.x], &a[threadIdx.x], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    out[threadIdx.x] = s[127 - threadIdx.x];
}

__global__ void matrices(const half *a, const half *b, float *c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

__global__ void textures(cudaTextureObject_t t, float *o) {
    o[threadIdx.x] = tex2D<float>(t, threadIdx.x, blockIdx.x) + tex1Dfetch<float>(t, 3);
}

__global__ void surfaces(cudaSurfaceObject_t t) { surf2Dwrite(1.0f, t, threadIdx.x * 4, blockIdx.x); }

__global__ void votes(int *a) {
    unsigned ballot = __ballot_sync(~0u, a[threadIdx.x] > 0);
    unsigned match = __match_any_sync(~0u, a[threadIdx.x]);
    a[threadIdx.x] = __popc(ballot) + __ffs(match) + __reduce_add_sync(~0u, 3);
}
