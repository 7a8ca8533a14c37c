// Gaussian elimination without pivoting: for each column one kernel computes the rows' factors, a second one subtracts the
// scaled row from all rows below. The second has a thread for each element of the matrix.
// Idea: Gaussian of CD-search Table 1 (Rodinia's subject).
// Sizes: 1,024 x 1,024, CTAs of 16 x 16; the first 64 columns, after which the matrix has hardly shrunk.
extern "C" __global__ void factors(const float *matrix, float *factor, int size, int column) {
    int row = blockIdx.x * blockDim.x + threadIdx.x + column + 1;
    if (row < size) factor[row] = matrix[(size_t)row * size + column] / matrix[(size_t)column * size + column];
}

extern "C" __global__ void eliminate(float *matrix, float *right, const float *factor, int size, int column) {
    int x = blockIdx.x * blockDim.x + threadIdx.x + column, y = blockIdx.y * blockDim.y + threadIdx.y + column + 1;
    if (x >= size || y >= size) return;
    matrix[(size_t)y * size + x] -= factor[y] * matrix[(size_t)column * size + x];
    if (x == column) right[y] -= factor[y] * right[column];
}
