// y = alpha A x + beta B x. A thread has a row of both matrices and walks along it, so that a warp's accesses lie a row apart.
// Idea: gesummv of the BLAS extensions; GESUMMV of CD-search Table 1 (PolyBench's subject).
// Sizes: 128 CTAs as in the table, of 32 threads: rows of 4,096 columns, as PolyBench has them. A launch walks along 16 columns, so
// that a CTA ends within a window; eight launches follow one another.
extern "C" __global__ void gesummv(const float *a, const float *b, const float *x, float *y, int pitch, int first_column, int columns,
                                   float alpha, float beta) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float first = 0, second = 0;
    for (int column = first_column; column < first_column + columns; column++) {
        first += a[(size_t)row * pitch + column] * x[column];
        second += b[(size_t)row * pitch + column] * x[column];
    }
    y[row] = (first_column == 0 ? 0 : y[row]) + alpha * first + beta * second;
}
