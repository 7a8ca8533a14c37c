// The Mandelbrot set in fixed-point arithmetic, so that host and device count the same iterations; threads of a warp leave
// the loop at very different times.
#include "check.h"

const int WIDTH = 160, HEIGHT = 100, LIMIT = 300;

__host__ __device__ inline int iterations(int px, int py) {
    // 28 fractional bits; products in 64.
    const int64_t one = 1ll << 28;
    int64_t cr = px * (3 * one / WIDTH) - 2 * one, ci = py * (2 * one / HEIGHT) - one, zr = 0, zi = 0;
    for (int i = 0; i < LIMIT; i++) {
        int64_t rr = zr * zr >> 28, ii = zi * zi >> 28;
        if (rr + ii > 4 * one) return i;
        zi = (zr * zi >> 27) + ci;
        zr = rr - ii + cr;
    }
    return LIMIT;
}

__global__ void mandelbrot(uint16_t *image) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < WIDTH && y < HEIGHT) image[y * WIDTH + x] = static_cast<uint16_t>(iterations(x, y));
}

int main() {
    uint16_t *image = blank<uint16_t>(WIDTH * HEIGHT);
    dim3 block(16, 12), grid((WIDTH + 15) / 16, (HEIGHT + 11) / 12);
    mandelbrot<<<grid, block>>>(image);
    CHECK(cudaGetLastError());
    std::vector<uint16_t> found = download(image, WIDTH * HEIGHT);
    long long sum = 0;
    int inside = 0;
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            int count = found[y * WIDTH + x], expected = iterations(x, y);
            expect(count == expected, "(%d, %d): %d, expected %d", x, y, count, expected);
            sum += count;
            inside += count == LIMIT;
        }
    // The set's area is 1.5066, of the 6 of the picture.
    double area = 6.0 * inside / (WIDTH * HEIGHT);
    expect(area > 1.45 && area < 1.65, "area %g", area);
    std::printf("mandelbrot %dx%d iterations=%lld inside=%d\n", WIDTH, HEIGHT, sum, inside);
    return verdict();
}
