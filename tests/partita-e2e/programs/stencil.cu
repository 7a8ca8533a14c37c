// Heat on a plate by Jacobi iteration: two halves of the plate on two streams, which exchange their border rows each step
// and wait for each other by events.
#include "check.h"

const int WIDTH = 192, HEIGHT = 128, STEPS = 40, HALF = HEIGHT / 2;

// Rows 0 and rows + 1 are halo; columns 0 and WIDTH - 1 keep their value.
__global__ void jacobi(const float *in, float *out, int rows) {
    __shared__ float tile[10][34];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y + 1;
    bool inside = x < WIDTH && y <= rows;
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    if (inside) {
        tile[ty][tx] = in[y * WIDTH + x];
        if (threadIdx.y == 0) tile[0][tx] = in[(y - 1) * WIDTH + x];
        if (threadIdx.y == 7 || y == rows) tile[ty + 1][tx] = in[(y + 1) * WIDTH + x];
        if (threadIdx.x == 0 && x > 0) tile[ty][0] = in[y * WIDTH + x - 1];
        if (threadIdx.x == 31 && x < WIDTH - 1) tile[ty][33] = in[y * WIDTH + x + 1];
    }
    __syncthreads();
    if (!inside) return;
    bool border = x == 0 || x == WIDTH - 1;
    float sum = tile[ty - 1][tx] + tile[ty + 1][tx] + tile[ty][tx - 1] + tile[ty][tx + 1];
    out[y * WIDTH + x] = border ? tile[ty][tx] : 0.25f * sum;
}

int main() {
    // The plate with a fixed row above and below.
    std::vector<float> plate((HEIGHT + 2) * WIDTH, 0.0f);
    Random random;
    for (float &value : plate) value = random.unit();

    float *in[2], *out[2];
    cudaStream_t streams[2];
    cudaEvent_t computed[2], exchanged[2];
    const size_t row = WIDTH * sizeof(float), half = (HALF + 2) * row;
    for (int h = 0; h < 2; h++) {
        CHECK(cudaMalloc(&in[h], half));
        CHECK(cudaMalloc(&out[h], half));
        CHECK(cudaMemcpy(in[h], &plate[h * HALF * WIDTH], half, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(out[h], &plate[h * HALF * WIDTH], half, cudaMemcpyHostToDevice));
        CHECK(cudaStreamCreate(&streams[h]));
        CHECK(cudaEventCreateWithFlags(&computed[h], cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&exchanged[h], cudaEventDisableTiming));
    }
    for (int step = 0; step < STEPS; step++) {
        for (int h = 0; h < 2; h++) {
            if (step > 0) CHECK(cudaStreamWaitEvent(streams[h], exchanged[1 - h], 0));
            jacobi<<<dim3((WIDTH + 31) / 32, HALF / 8), dim3(32, 8), 0, streams[h]>>>(in[h], out[h], HALF);
            CHECK(cudaGetLastError());
            CHECK(cudaEventRecord(computed[h], streams[h]));
        }
        for (int h = 0; h < 2; h++) {
            // This half's last own row becomes the other's halo.
            const float *from = out[h] + (h == 0 ? HALF : 1) * WIDTH;
            float *to = out[1 - h] + (h == 0 ? 0 : HALF + 1) * WIDTH;
            CHECK(cudaStreamWaitEvent(streams[h], computed[1 - h], 0));
            CHECK(cudaMemcpyAsync(to, from, row, cudaMemcpyDeviceToDevice, streams[h]));
            CHECK(cudaEventRecord(exchanged[h], streams[h]));
        }
        std::swap(in[0], out[0]);
        std::swap(in[1], out[1]);
    }
    CHECK(cudaDeviceSynchronize());
    std::vector<float> found = plate;
    for (int h = 0; h < 2; h++)
        CHECK(cudaMemcpy(&found[(h * HALF + 1) * WIDTH], in[h] + WIDTH, HALF * row, cudaMemcpyDeviceToHost));

    std::vector<float> next = plate;
    for (int step = 0; step < STEPS; step++) {
        for (int y = 1; y <= HEIGHT; y++)
            for (int x = 1; x < WIDTH - 1; x++) {
                int i = y * WIDTH + x;
                next[i] = 0.25f * (plate[i - WIDTH] + plate[i + WIDTH] + plate[i - 1] + plate[i + 1]);
            }
        std::swap(plate, next);
    }
    // The same additions in the same order and a product with a power of two: equal to the bit.
    for (size_t i = 0; i < plate.size(); i++)
        expect(found[i] == plate[i], "(%zu, %zu): %.9g, expected %.9g", i % WIDTH, i / WIDTH, found[i], plate[i]);
    std::printf("stencil %dx%d steps=%d centre=%.6f\n", WIDTH, HEIGHT, STEPS, found[HALF * WIDTH + WIDTH / 2]);
    return verdict();
}
