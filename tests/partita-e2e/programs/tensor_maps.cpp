// Tensor maps of every kind: made, given another address, and refused. On a GPU without them every call says so.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult error_ = (call);                                                                  \
        if (error_ != CUDA_SUCCESS) {                                                              \
            std::fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, error_);      \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

static int failures = 0;
#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

static CUresult tiled(CUtensorMap *map, CUdeviceptr at, cuuint32_t box) {
    const cuuint64_t extents[] = {1024, 512};
    const cuuint64_t strides[] = {2048};
    const cuuint32_t tile[] = {box, 128}, steps[] = {1, 1};
    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)at, extents, strides, tile, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static CUresult columns(CUtensorMap *map, CUdeviceptr at, int corner) {
    const cuuint64_t extents[] = {64, 16, 16, 4};
    const cuuint64_t strides[] = {128, 2048, 32768};
    const int lower[] = {-1, corner}, upper[] = {1, 1};
    const cuuint32_t steps[] = {1, 1, 1, 1};
    return cuTensorMapEncodeIm2col(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, (void *)at, extents, strides, lower, upper, 64, 128,
                                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

int main() {
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    int has;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc(&memory, 1 << 20));
    CHECK(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, device));
    CUtensorMap map, other, moved;
    if (!has) {
        EXPECT(tiled(&map, memory, 64) == CUDA_ERROR_NOT_SUPPORTED);
        std::puts(failures ? "FAILED" : "NONE");
        return failures != 0;
    }
    CHECK(tiled(&map, memory, 64));
    CHECK(tiled(&other, memory + 1024, 64));
    EXPECT(std::memcmp(&map, &other, sizeof map) != 0);
    moved = map;
    CHECK(cuTensorMapReplaceAddress(&moved, (void *)(memory + 1024)));
    EXPECT(std::memcmp(&moved, &other, sizeof map) == 0);
    // 65 halves are no multiple of 16 bytes, and 256 are more than the swizzle takes.
    EXPECT(tiled(&other, memory, 65) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(tiled(&other, memory, 256) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(tiled(&other, memory + 8, 64) == CUDA_ERROR_INVALID_VALUE);
    CHECK(columns(&map, memory, -1));
    CHECK(columns(&other, memory, -2));
    EXPECT(std::memcmp(&map, &other, sizeof map) != 0);
    EXPECT(columns(&other, memory, -129) == CUDA_ERROR_INVALID_VALUE);
    std::puts(failures ? "FAILED" : "PASSED");
    return failures != 0;
}
