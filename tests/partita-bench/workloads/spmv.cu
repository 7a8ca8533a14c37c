// Sparse matrix times vector, compressed sparse rows, eight lanes a row (the vector kernel of CUSP).
// 53,760 rows with 4 to 12 entries in random columns: 3.5 MB. 420 CTAs of 256 threads, four rows for
// each eight lanes.
extern "C" __global__ void spmv(const unsigned *starts, const unsigned *columns, const float *values,
                                const float *x, float *y) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) / 8, lane = threadIdx.x % 8;
    // Unrolled, so that no loop ends by what a loop has read: Partita would take the kernel for one
    // that waits for others' stores.
#pragma unroll
    for (unsigned turn = 0; turn < 4; turn++) {
        const unsigned row = first + turn * gridDim.x * blockDim.x / 8;
        const unsigned end = starts[row + 1];
        float sum = 0.0f;
        for (unsigned entry = starts[row] + lane; entry < end; entry += 8) {
            sum += values[entry] * x[columns[entry]];
        }
        for (unsigned distance = 4; distance > 0; distance /= 2) {
            sum += __shfl_down_sync(0xffffffffu, sum, distance, 8);
        }
        if (lane == 0) {
            y[row] = sum;
        }
    }
}
