// Kernels that launch kernels, by the driver's API: nested.o is linked with the runtime that nvcc gives such programs, its
// module is unloaded while kernels are in flight, and a program that runs far ahead of a launch is held back.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#define CHECK(call)                                                                  \
    do {                                                                             \
        CUresult error_ = (call);                                                    \
        if (error_ != CUDA_SUCCESS) {                                                \
            std::fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, error_); \
            std::_Exit(1);                                                           \
        }                                                                            \
    } while (0)

#define EXPECT(holds)                                                       \
    do {                                                                    \
        if (!(holds)) {                                                     \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds); \
            std::_Exit(1);                                                  \
        }                                                                   \
    } while (0)

int main(int count, char **paths) {
    if (count != 3) return 2;
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUlinkState link;
    void *image;
    size_t bytes;
    CHECK(cuLinkCreate(0, nullptr, nullptr, &link));
    CHECK(cuLinkAddFile(link, CU_JIT_INPUT_OBJECT, paths[1], 0, nullptr, nullptr));
    CHECK(cuLinkAddFile(link, CU_JIT_INPUT_LIBRARY, paths[2], 0, nullptr, nullptr));
    CHECK(cuLinkComplete(link, &image, &bytes));
    CUmodule module;
    CUfunction ordered, wait, add;
    CUdeviceptr words;
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&ordered, module, "_Z14default_streamPi"));
    size_t offset, size;
    CHECK(cuFuncGetParamInfo(ordered, 0, &offset, &size));
    EXPECT(offset == 0 && size == 8);
    EXPECT(cuFuncGetParamInfo(ordered, 1, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc(&words, 4096));
    CHECK(cuMemsetD8(words, 0, 4096));
    void *arguments[] = {&words};
    CHECK(cuLaunchKernel(ordered, 50, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    CHECK(cuModuleUnload(module));
    CHECK(cuCtxSynchronize());
    int found[50];
    CHECK(cuMemcpyDtoH(found, words, sizeof found));
    for (int word : found) EXPECT(word == 1234);

    // Behind a kernel that waits for the host: one that launches, and more work than the daemon takes.
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuLinkDestroy(link));
    CHECK(cuModuleGetFunction(&ordered, module, "_Z14default_streamPi"));
    CHECK(cuModuleGetFunction(&wait, module, "_Z8wait_forPVi"));
    CHECK(cuModuleGetFunction(&add, module, "_Z3addPii"));
    volatile int *flag;
    CHECK(cuMemHostAlloc((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP));
    *flag = 0;
    void *of_wait[] = {&flag};
    CHECK(cuLaunchKernel(wait, 1, 1, 1, 1, 1, 1, 0, nullptr, of_wait, nullptr));
    CHECK(cuLaunchKernel(ordered, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    const int most = 150000;
    std::atomic<int> taken{0};
    std::thread([&] {
        int one = 1;
        void *of_add[] = {&words, &one};
        CHECK(cuCtxSetCurrent(context));
        for (; taken < most; taken++) CHECK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, of_add, nullptr));
    }).detach();
    for (int before = -1; before != taken;) {
        before = taken;
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
    }
    EXPECT(taken < most);
    std::printf("nested_module taken=%d\nPASSED\n", taken.load());
    std::fflush(stdout);
    // What waits there goes with the process.
    std::_Exit(0);
}
