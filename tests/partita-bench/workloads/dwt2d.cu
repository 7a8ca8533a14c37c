// One level of the two-dimensional 5/3 wavelet transform by lifting: a CTA loads a tile with a margin of two into shared memory,
// transforms its rows, then its columns, and writes a quarter of each band.
// Idea: lifting (Sweldens 1996), as in JPEG 2000; DWT2D of CD-search Table 1 (Rodinia's subject).
// Sizes: 2,048 x 1,024 samples, tiles of 64 x 16, 2,048 CTAs of 32 x 8 threads.
#define TILE_X 64
#define TILE_Y 16
#define SPAN_X (TILE_X + 4)
#define SPAN_Y (TILE_Y + 4)

__device__ inline int reflected(int at, int size) { return at < 0 ? -at : at >= size ? 2 * size - 2 - at : at; }

extern "C" __global__ void dwt2d(const int *image, int *bands, int width, int height) {
    __shared__ int tile[SPAN_Y][SPAN_X + 1];
    int left = blockIdx.x * TILE_X - 2, top = blockIdx.y * TILE_Y - 2, column = threadIdx.x, row = threadIdx.y;
    for (int y = row; y < SPAN_Y; y += 8) {
        const int *line = image + reflected(top + y, height) * width;
        for (int x = column; x < SPAN_X; x += 32) tile[y][x] = line[reflected(left + x, width)];
    }
    __syncthreads();
    // Rows: odd places become details, then even ones averages.
    for (int y = row; y < SPAN_Y; y += 8)
        for (int x = 2 * column + 1; x < SPAN_X - 1; x += 64) tile[y][x] -= (tile[y][x - 1] + tile[y][x + 1]) >> 1;
    __syncthreads();
    for (int y = row; y < SPAN_Y; y += 8) {
        int x = 2 * column + 2;
        tile[y][x] += (tile[y][x - 1] + tile[y][x + 1] + 2) >> 2;
    }
    __syncthreads();
    // Columns, the same.
    for (int y = 2 * row + 1; y < SPAN_Y - 1; y += 16)
        for (int x = column; x < SPAN_X; x += 32) tile[y][x] -= (tile[y - 1][x] + tile[y + 1][x]) >> 1;
    __syncthreads();
    for (int x = column; x < SPAN_X; x += 32) {
        int y = 2 * row + 2;
        tile[y][x] += (tile[y - 1][x] + tile[y + 1][x] + 2) >> 2;
    }
    __syncthreads();
    // A quarter of the tile goes to each band; threads that follow each other write places that do.
    int *to = bands + (blockIdx.y * (TILE_Y / 2) + row) * width + blockIdx.x * (TILE_X / 2) + column;
    for (int odd_y = 0; odd_y < 2; odd_y++)
        for (int odd_x = 0; odd_x < 2; odd_x++)
            to[odd_y * (height / 2) * width + odd_x * (width / 2)] = tile[2 * row + 2 + odd_y][2 * column + 2 + odd_x];
}
