// Sparse matrix times vector in CSR form, one warp per row, with rows from empty to very long.
#include "check.h"

__global__ void spmv(int rows, const int *offsets, const int *columns, const double *values, const double *x, double *y) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;  // the same for a whole warp
    double sum = 0;
    for (int i = offsets[row] + lane; i < offsets[row + 1]; i += 32) sum += values[i] * __ldg(&x[columns[i]]);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0) y[row] = sum;
}

int main() {
    const int rows = 5000, size = 4000;
    Random random;
    std::vector<int> offsets(rows + 1, 0), columns;
    std::vector<double> values, x(size);
    for (int row = 0; row < rows; row++) {
        int length = row % 10 == 3 ? 0 : row % 1000 == 7 ? 2000 : static_cast<int>(random.below(70));
        for (int i = 0; i < length; i++) {
            columns.push_back(static_cast<int>(random.below(size)));
            values.push_back(random.unit() - 0.5);
        }
        offsets[row + 1] = static_cast<int>(columns.size());
    }
    for (double &value : x) value = random.unit() - 0.5;

    double *y = blank<double>(rows);
    spmv<<<(rows * 32 + 159) / 160, 160>>>(rows, upload(offsets), upload(columns), upload(values), upload(x), y);
    CHECK(cudaGetLastError());
    std::vector<double> found = download(y, rows);
    double checksum = 0;
    for (int row = 0; row < rows; row++) {
        double expected = 0;
        for (int i = offsets[row]; i < offsets[row + 1]; i++) expected += values[i] * x[columns[i]];
        // Another order of at most 2000 additions of numbers below 1/4.
        expect(std::fabs(found[row] - expected) < 1e-12, "row %d: %.15g, expected %.15g", row, found[row], expected);
        checksum += found[row];
    }
    std::printf("spmv rows=%d nonzeros=%zu sum=%.9f\n", rows, values.size(), checksum);
    return verdict();
}
