// A matrix times a vector, one row a thread, added to another vector. Neighbouring threads read lines that lie a row apart.
// Masola Table 2: a matrix of 64 MiB, 64 CTAs of 64 threads, as in Polybench. Here the first 512 of its 4,096 columns.
extern "C" __global__ void mvt(const float *matrix, const float *x, float *y, unsigned pitch, unsigned columns) {
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = y[row];
    for (unsigned column = 0; column < columns; column++) sum += matrix[row * pitch + column] * x[column];
    y[row] = sum;
}
