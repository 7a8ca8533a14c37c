// Surfaces: kernels write and read a 2-D array and a 3-D array by byte offset, with elements of one, two and four words.
#include "check.h"

const int WIDTH = 37, HEIGHT = 21, DEPTH = 5;

__host__ __device__ inline float4 pattern(int x, int y) {
    return make_float4(x + 0.5f, y - 0.25f, static_cast<float>(x * y), -1.0f);
}

__global__ void paint(cudaSurfaceObject_t surface) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < WIDTH && y < HEIGHT) surf2Dwrite(pattern(x, y), surface, x * static_cast<int>(sizeof(float4)), y);
}

__global__ void mirror(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= WIDTH || y >= HEIGHT) return;
    float4 value = surf2Dread<float4>(from, x * static_cast<int>(sizeof(float4)), y);
    surf2Dwrite(value, to, (WIDTH - 1 - x) * static_cast<int>(sizeof(float4)), y);
}

__global__ void fill3D(cudaSurfaceObject_t surface) {
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    surf3Dwrite(static_cast<unsigned short>(x + 100 * y + 1000 * z), surface, x * 2, y, z);
}

// Outside the surface nothing is written and zero is read.
__global__ void outside(cudaSurfaceObject_t surface, float *out) {
    surf2Dwrite(make_float4(9, 9, 9, 9), surface, -16, 0, cudaBoundaryModeZero);
    out[0] = surf2Dread<float4>(surface, WIDTH * 16, 0, cudaBoundaryModeZero).x;
    out[1] = surf2Dread<float4>(surface, 1000 * 16, 3, cudaBoundaryModeClamp).y;
}

cudaSurfaceObject_t makeSurface(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface;
    CHECK(cudaCreateSurfaceObject(&surface, &resource));
    return surface;
}

int main() {
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<float4>();
    cudaArray_t first, second;
    CHECK(cudaMallocArray(&first, &channel, WIDTH, HEIGHT, cudaArraySurfaceLoadStore));
    CHECK(cudaMallocArray(&second, &channel, WIDTH, HEIGHT, cudaArraySurfaceLoadStore));
    dim3 block(16, 4), grid((WIDTH + 15) / 16, (HEIGHT + 3) / 4);
    cudaSurfaceObject_t a = makeSurface(first), b = makeSurface(second);
    paint<<<grid, block>>>(a);
    mirror<<<grid, block>>>(a, b);
    float *edge = blank<float>(2);
    outside<<<1, 1>>>(a, edge);
    CHECK(cudaGetLastError());
    std::vector<float4> found(WIDTH * HEIGHT);
    size_t row = WIDTH * sizeof(float4);
    CHECK(cudaMemcpy2DFromArray(found.data(), row, second, 0, 0, row, HEIGHT, cudaMemcpyDeviceToHost));
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            float4 value = found[y * WIDTH + x], expected = pattern(WIDTH - 1 - x, y);
            expect(value.x == expected.x && value.y == expected.y && value.z == expected.z && value.w == expected.w,
                   "(%d, %d): %g %g %g %g", x, y, value.x, value.y, value.z, value.w);
        }
    std::vector<float> edges = download(edge, 2);
    expect(edges[0] == 0.0f, "outside: %g, expected 0", edges[0]);
    expect(edges[1] == pattern(WIDTH - 1, 3).y, "clamped: %g", edges[1]);

    cudaChannelFormatDesc narrow = cudaCreateChannelDesc<unsigned short>();
    cudaArray_t cube;
    cudaExtent extent = make_cudaExtent(WIDTH, HEIGHT, DEPTH);
    CHECK(cudaMalloc3DArray(&cube, &narrow, extent, cudaArraySurfaceLoadStore));
    fill3D<<<dim3(HEIGHT, DEPTH), WIDTH>>>(makeSurface(cube));
    CHECK(cudaGetLastError());
    std::vector<unsigned short> voxels(WIDTH * HEIGHT * DEPTH);
    cudaMemcpy3DParms copy = {};
    copy.srcArray = cube;
    copy.dstPtr = make_cudaPitchedPtr(voxels.data(), WIDTH * 2, WIDTH, HEIGHT);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    for (int i = 0; i < WIDTH * HEIGHT * DEPTH; i++) {
        int x = i % WIDTH, y = i / WIDTH % HEIGHT, z = i / WIDTH / HEIGHT;
        expect(voxels[i] == x + 100 * y + 1000 * z, "voxel (%d, %d, %d): %d", x, y, z, voxels[i]);
    }
    std::printf("surface %dx%d and %dx%dx%d\n", WIDTH, HEIGHT, WIDTH, HEIGHT, DEPTH);
    return verdict();
}
