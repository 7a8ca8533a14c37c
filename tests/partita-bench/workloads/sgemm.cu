// C = A x B for single precision, with tiles of 32 x 32 in shared memory, as NVIDIA's sample does
// it. 768 x 768: 576 CTAs of 1,024 threads.
extern "C" __global__ void sgemm(const float *a, const float *b, float *c, unsigned size) {
    __shared__ float left[32][32], right[32][32];
    const unsigned x = threadIdx.x, y = threadIdx.y;
    const unsigned row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    float sum = 0.0f;
    for (unsigned tile = 0; tile < size; tile += 32) {
        left[y][x] = a[row * size + tile + x];
        right[y][x] = b[(tile + y) * size + column];
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < 32; k++) {
            sum += left[y][k] * right[k][x];
        }
        __syncthreads();
    }
    c[row * size + column] = sum;
}
