// Object files and libraries of nvcc's, linked while the program runs: rdc.o, a library with rdc_part.o in it, and the runtime for
// kernels that launch kernels, which no kernel here does.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#define CHECK(call)                                                                  \
    do {                                                                             \
        CUresult error_ = (call);                                                    \
        if (error_ != CUDA_SUCCESS) {                                                \
            std::fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, error_); \
            std::exit(1);                                                            \
        }                                                                            \
    } while (0)

static int failures = 0;

// Loads what was linked and runs the kernel of one file, which calls functions of the other.
static void run(const void *image) {
    const int n = 2000;
    CUmodule module;
    CUfunction own;
    CUdeviceptr out, weighed;
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&own, module, "_Z3ownPiPfi"));
    CHECK(cuMemAlloc(&out, n * 4));
    CHECK(cuMemAlloc(&weighed, n * 4));
    int count = n;
    void *arguments[] = {&out, &weighed, &count};
    CHECK(cuLaunchKernel(own, (n + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
    std::vector<int> found(n);
    std::vector<float> heavy(n);
    CHECK(cuMemcpyDtoH(found.data(), out, n * 4));
    CHECK(cuMemcpyDtoH(heavy.data(), weighed, n * 4));
    const float factor[4] = {0.5f, 2.0f, -1.0f, 8.0f};
    for (int i = 0; i < n; i++)
        if (found[i] != 2 * (i + 1) + 3 + (i * i + 50) || heavy[i] != i * factor[i % 4]) failures++;
    CHECK(cuMemFree(out));
    CHECK(cuMemFree(weighed));
    CHECK(cuModuleUnload(module));
}

int main(int count, char **paths) {
    if (count != 4) return 2;
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    for (bool fromFile : {true, false}) {
        CUlinkState link;
        void *image;
        size_t bytes;
        CHECK(cuLinkCreate(0, nullptr, nullptr, &link));
        for (int index = 1; index < count; index++) {
            CUjitInputType type = index == 1 ? CU_JIT_INPUT_OBJECT : CU_JIT_INPUT_LIBRARY;
            if (fromFile) {
                CHECK(cuLinkAddFile(link, type, paths[index], 0, nullptr, nullptr));
                continue;
            }
            std::ifstream file(paths[index], std::ios::binary);
            std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
            CHECK(cuLinkAddData(link, type, content.data(), content.size(), paths[index], 0, nullptr, nullptr));
        }
        CHECK(cuLinkComplete(link, &image, &bytes));
        run(image);
        CHECK(cuLinkDestroy(link));
    }
    std::printf("linking wrong=%d\n%s\n", failures, failures == 0 ? "PASSED" : "FAILED");
    return failures != 0;
}
