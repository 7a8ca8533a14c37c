// The transpose of a matrix, with tiles of 16 x 16 in shared memory that are padded against bank
// conflicts, as NVIDIA's sample does it. 1,536 x 1,536: 9,216 CTAs of 256 threads.
extern "C" __global__ void transpose(const float *from, float *to, unsigned size) {
    __shared__ float tile[16][17];
    const unsigned x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = from[y * size + x];
    __syncthreads();
    const unsigned u = blockIdx.y * 16 + threadIdx.x, v = blockIdx.x * 16 + threadIdx.y;
    to[v * size + u] = tile[threadIdx.x][threadIdx.y];
}
