// Gaussian elimination without pivoting: for each column one kernel computes the rows' factors, a second one subtracts the
// scaled row from all rows below. The second has a thread for each element of the matrix.
// Idea: Gaussian of CD-search Table 1 (Rodinia's subject). As there, the factors are a column of a matrix of their own, CTAs have
// 4 x 4 threads, and neighbouring threads and CTAs have neighbouring rows, so that accesses do not coalesce.
// Sizes: 2,048 x 2,048, which gives the table's 512 x 512 CTAs; the first 16 columns, after which the matrix has hardly shrunk.
extern "C" __global__ void factors(const float *matrix, float *factor, int size, int column) {
    int row = blockIdx.x * blockDim.x + threadIdx.x + column + 1;
    if (row >= size) return;
    factor[(size_t)row * size + column] = matrix[(size_t)row * size + column] / matrix[(size_t)column * size + column];
}

extern "C" __global__ void eliminate(float *matrix, float *right, const float *factor, int size, int column) {
    int y = blockIdx.x * blockDim.x + threadIdx.x + column + 1, x = blockIdx.y * blockDim.y + threadIdx.y + column;
    if (x >= size || y >= size) return;
    matrix[(size_t)y * size + x] -= factor[(size_t)y * size + column] * matrix[(size_t)column * size + x];
    if (x == column) right[y] -= factor[(size_t)y * size + column] * right[column];
}
