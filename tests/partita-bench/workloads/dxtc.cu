// DXT1 texture compression. A CTA of 64 threads takes one block of 4x4 pixels; the pixels are sorted along the block's
// principal axis, and every way to cut that order into the four colours of the palette (969 of them) is tried by least
// squares; the best is written as 8 bytes.
// Idea: cluster fit for S3TC; CD-search Table 1 names the CUDA sample of that kind.
// Sizes: 1,024 x 1,024 pixels, 65,536 CTAs.
#define CUTS 969

struct Fit {
    float error;
    unsigned cut;
};

__device__ inline float dot3(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ inline float3 scaled(float3 a, float s) { return make_float3(a.x * s, a.y * s, a.z * s); }
__device__ inline float3 sum(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }

__device__ inline unsigned pack565(float3 c) {
    unsigned r = __saturatef(c.x) * 31.0f + 0.5f, g = __saturatef(c.y) * 63.0f + 0.5f, b = __saturatef(c.z) * 31.0f + 0.5f;
    return r << 11 | g << 5 | b;
}

// End points of the palette for a cut: pixels [0, a) are colour 0, [a, b) 2/3 of it, [b, c) 1/3, [c, 16) colour 1.
__device__ inline float solve(const float3 *prefix, unsigned a, unsigned b, unsigned c, float3 *low, float3 *high) {
    float3 total = prefix[16], pa = prefix[a], pb = prefix[b], pc = prefix[c];
    float n0 = a, n1 = b - a, n2 = c - b, n3 = 16 - c;
    float aa = n0 + n1 * (4.0f / 9) + n2 * (1.0f / 9), bb = n3 + n2 * (4.0f / 9) + n1 * (1.0f / 9), ab = (n1 + n2) * (2.0f / 9);
    // Sum of weights times pixels, by the prefix sums.
    float3 ax = sum(sum(scaled(pa, 1.0f / 3), scaled(pb, 1.0f / 3)), scaled(pc, 1.0f / 3));
    float3 bx = sum(total, scaled(ax, -1.0f));
    float determinant = aa * bb - ab * ab;
    float inverse = determinant > 1e-6f ? 1.0f / determinant : 0.0f;
    *low = sum(scaled(ax, bb * inverse), scaled(bx, -ab * inverse));
    *high = sum(scaled(bx, aa * inverse), scaled(ax, -ab * inverse));
    return aa * dot3(*low, *low) + bb * dot3(*high, *high) + 2 * ab * dot3(*low, *high) - 2 * dot3(*low, ax) - 2 * dot3(*high, bx);
}

extern "C" __global__ void dxtc(const unsigned *image, const unsigned *cuts, uint2 *blocks, unsigned width) {
    __shared__ float3 pixels[16], sorted[16], prefix[17];
    __shared__ unsigned char order[16];
    __shared__ Fit fits[64];
    unsigned thread = threadIdx.x, across = width / 4;
    unsigned column = blockIdx.x % across * 4, row = blockIdx.x / across * 4;
    if (thread < 16) {
        unsigned word = image[(row + thread / 4) * width + column + thread % 4];
        pixels[thread] = scaled(make_float3(word & 255, word >> 8 & 255, word >> 16 & 255), 1.0f / 255);
    }
    __syncthreads();
    if (thread < 16) {
        float3 mean = make_float3(0, 0, 0);
        for (int i = 0; i < 16; i++) mean = sum(mean, scaled(pixels[i], 1.0f / 16));
        // Two rounds of the power method give the principal axis.
        float3 axis = make_float3(0.6f, 0.7f, 0.4f);
        for (int round = 0; round < 2; round++) {
            float3 next = make_float3(0, 0, 0);
            for (int i = 0; i < 16; i++) {
                float3 from = sum(pixels[i], scaled(mean, -1.0f));
                next = sum(next, scaled(from, dot3(from, axis)));
            }
            axis = scaled(next, rsqrtf(dot3(next, next) + 1e-12f));
        }
        float own = dot3(pixels[thread], axis);
        unsigned rank = 0;
        for (unsigned i = 0; i < 16; i++) {
            float other = dot3(pixels[i], axis);
            rank += other < own || (other == own && i < thread);
        }
        sorted[rank] = pixels[thread];
        order[rank] = thread;
    }
    __syncthreads();
    if (thread < 17) {
        float3 total = make_float3(0, 0, 0);
        for (unsigned i = 0; i < thread; i++) total = sum(total, sorted[i]);
        prefix[thread] = total;
    }
    __syncthreads();
    Fit best = {3e38f, 0};
    float3 low, high;
    for (unsigned i = thread; i < CUTS; i += 64) {
        unsigned code = cuts[i];
        float error = solve(prefix, code & 31, code >> 5 & 31, code >> 10, &low, &high);
        if (error < best.error) best = {error, code};
    }
    fits[thread] = best;
    __syncthreads();
    for (unsigned half = 32; half > 0; half /= 2) {
        if (thread < half) {
            Fit other = fits[thread + half];
            if (other.error < fits[thread].error || (other.error == fits[thread].error && other.cut < fits[thread].cut)) fits[thread] = other;
        }
        __syncthreads();
    }
    if (thread == 0) {
        unsigned code = fits[0].cut, a = code & 31, b = code >> 5 & 31, c = code >> 10, indices = 0;
        solve(prefix, a, b, c, &low, &high);
        for (unsigned i = 0; i < 16; i++) {
            unsigned index = i < a ? 0 : i < b ? 2 : i < c ? 3 : 1;
            indices |= index << (2 * order[i]);
        }
        blocks[blockIdx.x] = make_uint2(pack565(low) | pack565(high) << 16, indices);
    }
}
