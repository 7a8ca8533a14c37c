// Copies and fills in two and three dimensions: pitched memory, parts of rectangles, all directions.
#include "check.h"

__global__ void markPitched(unsigned char *data, size_t pitch, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < width && y < height) data[y * pitch + x] ^= static_cast<unsigned char>(x + y);
}

int main() {
    const int width = 301, height = 47;
    Random random;
    std::vector<unsigned char> in(width * height), out(width * height, 0xee);
    for (unsigned char &value : in) value = static_cast<unsigned char>(random.below(256));

    unsigned char *a, *b;
    size_t pitchA, pitchB;
    CHECK(cudaMallocPitch(&a, &pitchA, width, height));
    CHECK(cudaMallocPitch(&b, &pitchB, 2 * width, height));
    expect(pitchA >= width && pitchA % 32 == 0, "pitch %zu", pitchA);
    CHECK(cudaMemset2D(b, pitchB, 0x55, 2 * width, height));
    CHECK(cudaMemcpy2D(a, pitchA, in.data(), width, width, height, cudaMemcpyHostToDevice));
    markPitched<<<dim3(3, height), 128>>>(a, pitchA, width, height);
    CHECK(cudaGetLastError());
    // A part of A into the middle of B, and from there to the host.
    const int partWidth = 100, partHeight = 20, fromX = 33, fromY = 5, toX = 77, toY = 19;
    CHECK(cudaMemcpy2D(b + toY * pitchB + toX, pitchB, a + fromY * pitchA + fromX, pitchA, partWidth, partHeight,
                       cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2D(out.data(), width, a, pitchA, width, height, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int expected = in[y * width + x] ^ static_cast<unsigned char>(x + y);
            expect(out[y * width + x] == expected, "A (%d, %d): %d, expected %d", x, y, out[y * width + x], expected);
        }
    std::vector<unsigned char> wide(2 * width * height);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMemcpy2DAsync(wide.data(), 2 * width, b, pitchB, 2 * width, height, cudaMemcpyDefault, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < 2 * width; x++) {
            int px = x - toX, py = y - toY;
            bool part = px >= 0 && px < partWidth && py >= 0 && py < partHeight;
            int expected = part ? out[(py + fromY) * width + px + fromX] : 0x55;
            expect(wide[y * 2 * width + x] == expected, "B (%d, %d): %d, expected %d", x, y, wide[y * 2 * width + x],
                   expected);
        }

    // A box out of a cube, through pitched memory on the device.
    cudaExtent extent = make_cudaExtent(20 * sizeof(int), 10, 6);
    std::vector<int> cube(20 * 10 * 6), box(7 * 4 * 3, -1);
    for (size_t i = 0; i < cube.size(); i++) cube[i] = static_cast<int>(i);
    cudaPitchedPtr device;
    CHECK(cudaMalloc3D(&device, extent));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(cube.data(), 20 * sizeof(int), 20, 10);
    copy.dstPtr = device;
    copy.extent = extent;
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    copy = {};
    copy.srcPtr = device;
    copy.srcPos = make_cudaPos(9 * sizeof(int), 5, 2);
    copy.dstPtr = make_cudaPitchedPtr(box.data(), 7 * sizeof(int), 7, 4);
    copy.extent = make_cudaExtent(7 * sizeof(int), 4, 3);
    copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 7; x++) {
                int expected = (z + 2) * 200 + (y + 5) * 20 + x + 9, found = box[(z * 4 + y) * 7 + x];
                expect(found == expected, "box (%d, %d, %d): %d, expected %d", x, y, z, found, expected);
            }

    // Fills of 16 and 32 bits come from the driver's own calls; a fill by bytes must not spill over its end.
    CHECK(cudaMemset(a, 0x11, 256));
    CHECK(cudaMemset(a + 3, 0x22, 5));
    std::vector<unsigned char> head = download(a, 16);
    for (int i = 0; i < 16; i++) expect(head[i] == (i >= 3 && i < 8 ? 0x22 : 0x11), "fill, %d: %x", i, head[i]);
    std::printf("copy2d %dx%d and a box of 7x4x3\n", width, height);
    return verdict();
}
