// The cheapest path from the bottom of a grid to its top, row by row: a place costs its weight and the least of the three places
// under it. A CTA does 16 rows of a strip in shared memory; the strip shrinks by one place on each side with each row.
// Idea: dynamic programming with ghost zones (Meng and Skadron 2009); PathFinder of CD-search Table 1.
// Sizes: 4,630 CTAs (half of the table's), 256 threads, 16 rows a launch, four launches one after the other.
#define THREADS 256
#define ROWS 16

extern "C" __global__ void pathfinder(const unsigned char *weights, const int *from, int *to, int width, int first_row) {
    __shared__ int before[THREADS], after[THREADS];
    int kept = THREADS - 2 * ROWS, x = (int)blockIdx.x * kept - ROWS + (int)threadIdx.x;
    bool inside = x >= 0 && x < width;
    before[threadIdx.x] = inside ? from[x] : 1 << 30;
    __syncthreads();
    for (int row = 0; row < ROWS; row++) {
        bool known = threadIdx.x > row && threadIdx.x < THREADS - 1 - row && inside;
        int best = 1 << 30;
        if (known) {
            best = min(before[threadIdx.x], min(before[threadIdx.x - 1], before[threadIdx.x + 1]));
            best += weights[(size_t)(first_row + row) * width + x];
        }
        after[threadIdx.x] = best;
        __syncthreads();
        before[threadIdx.x] = after[threadIdx.x];
        __syncthreads();
    }
    if (inside && threadIdx.x >= ROWS && threadIdx.x < THREADS - ROWS) to[x] = before[threadIdx.x];
}
