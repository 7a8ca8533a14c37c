// DXT1 texture compression with whole CTAs of 512 threads. A CTA takes blocks of 4 x 4 pixels one after the other; its
// threads try the pairs of the block's 16 colours as end points, two directions each, and the pair of least error is kept.
// Masola Table 2: DXTC of the CUDA samples, 46 CTAs of 512 threads, 1.5 KB of shared memory. Here 46 CTAs with 24 blocks each.
struct Fit {
    float error;
    unsigned pair;
};

extern "C" __global__ void dxt1(const unsigned *image, uint2 *blocks, unsigned blocks_per_cta) {
    __shared__ float red[16], green[16], blue[16];
    __shared__ Fit fits[16];
    const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    for (unsigned k = 0; k < blocks_per_cta; k++) {
        const unsigned block = blockIdx.x * blocks_per_cta + k;
        if (thread < 16) {
            const unsigned word = image[block * 16 + thread];
            red[thread] = (word & 255) / 255.0f;
            green[thread] = (word >> 8 & 255) / 255.0f;
            blue[thread] = (word >> 16 & 255) / 255.0f;
        }
        __syncthreads();
        const unsigned first = thread % 16, second = thread / 16 % 16, mode = thread / 256;
        const float parts = mode ? 2.0f : 3.0f;
        float error = 0;
        for (unsigned pixel = 0; pixel < 16; pixel++) {
            float best = 1e30f;
            for (unsigned step = 0; step <= 3 - mode; step++) {
                const float w = step / parts;
                const float r = red[first] + (red[second] - red[first]) * w - red[pixel];
                const float g = green[first] + (green[second] - green[first]) * w - green[pixel];
                const float b = blue[first] + (blue[second] - blue[first]) * w - blue[pixel];
                best = fminf(best, r * r + g * g + b * b);
            }
            error += best;
        }
        Fit fit = {error, thread};
        for (unsigned half = 16; half > 0; half /= 2) {
            const float other = __shfl_down_sync(~0u, fit.error, half);
            const unsigned pair = __shfl_down_sync(~0u, fit.pair, half);
            if (other < fit.error) fit = {other, pair};
        }
        if (lane == 0) fits[warp] = fit;
        __syncthreads();
        if (thread == 0) {
            for (unsigned i = 1; i < 16; i++) {
                if (fits[i].error < fits[0].error) fits[0] = fits[i];
            }
            blocks[block] = make_uint2(fits[0].pair, __float_as_uint(fits[0].error));
        }
        __syncthreads();
    }
}
