// LU decomposition with partial pivoting in double precision, one small launch after another, then a solution by forward
// and back substitution on the device.  Judged by the residual of the original system.
#include "check.h"

const int N = 96;

__global__ void findPivot(const double *a, int k, int *pivots) {
    __shared__ double best[128];
    __shared__ int where[128];
    int t = threadIdx.x;
    best[t] = -1;
    where[t] = k;
    for (int row = k + t; row < N; row += blockDim.x) {
        double size = fabs(a[row * N + k]);
        if (size > best[t]) {
            best[t] = size;
            where[t] = row;
        }
    }
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (t < stride && best[t + stride] > best[t]) {
            best[t] = best[t + stride];
            where[t] = where[t + stride];
        }
        __syncthreads();
    }
    if (t == 0) pivots[k] = where[0];
}

__global__ void swapRows(double *a, double *b, int k, const int *pivots) {
    int pivot = pivots[k], column = threadIdx.x;
    if (pivot == k) return;
    double value = a[k * N + column];
    a[k * N + column] = a[pivot * N + column];
    a[pivot * N + column] = value;
    if (column == 0) {
        value = b[k];
        b[k] = b[pivot];
        b[pivot] = value;
    }
}

__global__ void scaleColumn(double *a, int k) {
    int row = k + 1 + blockIdx.x * blockDim.x + threadIdx.x;
    if (row < N) a[row * N + k] /= a[k * N + k];
}

__global__ void eliminate(double *a, int k) {
    int row = k + 1 + blockIdx.y * blockDim.y + threadIdx.y, column = k + 1 + blockIdx.x * blockDim.x + threadIdx.x;
    if (row < N && column < N) a[row * N + column] -= a[row * N + k] * a[k * N + column];
}

__global__ void substitute(const double *a, double *x) {
    for (int k = 0; k < N; k++) {
        __syncthreads();
        int row = threadIdx.x;
        if (row > k && row < N) x[row] -= a[row * N + k] * x[k];
    }
    for (int k = N - 1; k >= 0; k--) {
        __syncthreads();
        if (threadIdx.x == 0) x[k] /= a[k * N + k];
        __syncthreads();
        int row = threadIdx.x;
        if (row < k) x[row] -= a[row * N + k] * x[k];
    }
}

int main() {
    Random random;
    std::vector<double> a(N * N), b(N);
    for (double &value : a) value = random.unit() - 0.5;
    for (double &value : b) value = random.unit() - 0.5;
    double *da = upload(a), *db = upload(b);
    int *pivots = blank<int>(N);
    for (int k = 0; k < N - 1; k++) {
        int left = N - 1 - k;
        findPivot<<<1, 128>>>(da, k, pivots);
        swapRows<<<1, N>>>(da, db, k, pivots);
        scaleColumn<<<(left + 31) / 32, 32>>>(da, k);
        eliminate<<<dim3((left + 15) / 16, (left + 15) / 16), dim3(16, 16)>>>(da, k);
    }
    substitute<<<1, N>>>(da, db);
    CHECK(cudaGetLastError());
    std::vector<double> x = download(db, N), lu = download(da, N * N);
    std::vector<int> chosen = download(pivots, N - 1);

    // Partial pivoting keeps every multiplier at or below one.
    int swaps = 0;
    for (int k = 0; k < N - 1; k++) {
        expect(chosen[k] >= k && chosen[k] < N, "pivot %d is row %d", k, chosen[k]);
        swaps += chosen[k] != k;
    }
    for (int row = 0; row < N; row++)
        for (int column = 0; column < row; column++)
            expect(std::fabs(lu[row * N + column]) <= 1.0, "multiplier (%d, %d): %g", row, column, lu[row * N + column]);
    // Backward stability: the residual is about N * growth * 2^-53 * |A| |x|, here some 1e-12 at most.
    double size = 0, worst = 0;
    for (double value : x) size = std::fmax(size, std::fabs(value));
    for (int row = 0; row < N; row++) {
        double sum = -b[row];
        for (int column = 0; column < N; column++) sum += a[row * N + column] * x[column];
        worst = std::fmax(worst, std::fabs(sum));
    }
    expect(worst <= 1e-12 * std::fmax(1.0, size), "residual %g at |x| = %g", worst, size);
    std::printf("lu n=%d swaps=%d |x|=%.6f\n", N, swaps, size);
    return verdict();
}
