// A quasi-random sequence from tables of 31 directions in 3 dimensions, as NVIDIA's sample makes it:
// 128 CTAs of 128 x 3 threads stride over 2^18 numbers a dimension. The grid does not fill a large
// GPU, and there is little to do besides bits.
__constant__ unsigned directions[3][31];

extern "C" __global__ void quasirandom(float *output, unsigned seed, unsigned count) {
    const unsigned *table = directions[threadIdx.y];
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
        unsigned result = 0;
        unsigned bits = seed + at;
        for (unsigned bit = 0; bit < 31; bit++, bits >>= 1) {
            if (bits & 1) {
                result ^= table[bit];
            }
        }
        output[threadIdx.y * count + at] = (float)(result + 1) * (1.0f / 2147483648.0f);
    }
}
