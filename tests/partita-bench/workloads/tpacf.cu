// Two-point angular correlation. Each CTA takes one set of points on the sphere and counts, for each pair of a point of its set
// and one of the observed set, the bin of the angle between them: a dot product, a binary search over the bins' borders, a
// count in the warp's own histogram in shared memory.
// Idea: TPACF of CD-search Table 1 (Parboil's subject, astronomy).
// Sizes: 201 CTAs as in the table, 256 observed points, 16 points a set, 20 bins.
#define BINS 20
#define OBSERVED 256
#define SET 16
#define THREADS 256

__constant__ float borders[BINS + 1] = {
    1.0f,       0.99999f,   0.99998f,   0.99995f,   0.9999f,    0.9998f,    0.9996f,    0.9992f,   0.998f,    0.996f,   0.992f,
    0.984f,     0.968f,     0.937f,     0.88f,      0.76f,      0.54f,      0.2f,       -0.2f,     -0.6f,     -1.01f};

extern "C" __global__ void tpacf(const float *observed, const float *sets, unsigned *histograms) {
    __shared__ float set[3][SET];
    __shared__ unsigned counts[THREADS / 32][BINS + 1];
    for (unsigned i = threadIdx.x; i < 3 * SET; i += THREADS) set[i / SET][i % SET] = sets[blockIdx.x * 3 * SET + i];
    for (unsigned i = threadIdx.x; i < THREADS / 32 * (BINS + 1); i += THREADS) counts[i / (BINS + 1)][i % (BINS + 1)] = 0;
    __syncthreads();
    unsigned *own = counts[threadIdx.x / 32];
    for (unsigned i = threadIdx.x; i < OBSERVED; i += THREADS) {
        float x = observed[i], y = observed[OBSERVED + i], z = observed[2 * OBSERVED + i];
        for (unsigned j = 0; j < SET; j++) {
            float cosine = x * set[0][j] + y * set[1][j] + z * set[2][j];
            unsigned low = 0, high = BINS;
            while (low + 1 < high) {
                unsigned middle = (low + high) / 2;
                if (cosine > borders[middle]) high = middle;
                else low = middle;
            }
            atomicAdd(&own[low], 1);
        }
    }
    __syncthreads();
    if (threadIdx.x < BINS) {
        unsigned total = 0;
        for (unsigned warp = 0; warp < THREADS / 32; warp++) total += counts[warp][threadIdx.x];
        histograms[blockIdx.x * BINS + threadIdx.x] = total;
    }
}
