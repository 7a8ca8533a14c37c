// y = alpha A x + beta B x. A thread has a row of both matrices and walks along it, so that a warp's accesses lie a row apart.
// Idea: gesummv of the BLAS extensions; GESUMMV of CD-search Table 1 (PolyBench's subject).
// Sizes: 128 CTAs as in the table, of 32 threads, 4,096 rows; rows of 128 columns, so that a CTA ends within a window.
extern "C" __global__ void gesummv(const float *a, const float *b, const float *x, float *y, int columns, float alpha, float beta) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float first = 0, second = 0;
    for (int column = 0; column < columns; column++) {
        first += a[(size_t)row * columns + column] * x[column];
        second += b[(size_t)row * columns + column] * x[column];
    }
    y[row] = alpha * first + beta * second;
}
