// Matrix transpose through padded tiles in shared memory, for sizes that no tile divides.
#include "check.h"

const int TILE = 32, ROWS = 8;

template <class T>
__global__ void transpose(const T *in, T *out, int width, int height) {
    __shared__ T tile[TILE][TILE + 1];  // padded against bank conflicts
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

template <class T>
void run(const char *type, int width, int height) {
    std::vector<T> in(width * height);
    for (int i = 0; i < width * height; i++) in[i] = static_cast<T>(i * 7 + 3);
    T *device = upload(in), *out = blank<T>(in.size());
    dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE), block(TILE, ROWS);
    transpose<<<grid, block>>>(device, out, width, height);
    CHECK(cudaGetLastError());
    std::vector<T> found = download(out, in.size());
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            expect(found[x * height + y] == in[y * width + x], "%s %dx%d at (%d, %d)", type, width, height, x, y);
    CHECK(cudaFree(device));
    CHECK(cudaFree(out));
    std::printf("transpose %s %dx%d\n", type, width, height);
}

int main() {
    run<float>("float", 512, 384);
    run<float>("float", 333, 257);
    run<double>("double", 100, 250);
    run<short>("short", 65, 1000);
    run<unsigned char>("byte", 1, 77);
    return verdict();
}
