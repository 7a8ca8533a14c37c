// C = A x B for single precision, with tiles of 16 x 16 in shared memory, as CUDA's sample of the
// paper's time does it. 256 x 384 times 384 x 256: 256 CTAs of 256 threads.
extern "C" __global__ void mm(const float *a, const float *b, float *c, unsigned depth, unsigned width) {
    __shared__ float left[16][16], right[16][16];
    const unsigned x = threadIdx.x, y = threadIdx.y;
    const unsigned row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (unsigned tile = 0; tile < depth; tile += 16) {
        left[y][x] = a[row * depth + tile + x];
        right[y][x] = b[(tile + y) * width + column];
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < 16; k++) {
            sum += left[y][k] * right[k][x];
        }
        __syncthreads();
    }
    c[row * width + column] = sum;
}
