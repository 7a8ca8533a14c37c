// Processes and libraries that come and go: fork before and after CUDA is initialised, exec, a runtime library that is closed
// and opened again beside another use of the driver, and threads that are still busy when the program ends.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define CHECK(call)                                                              \
    do {                                                                         \
        int result_ = (call);                                                    \
        if (result_ != 0) {                                                      \
            std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result_); \
            _exit(1);                                                            \
        }                                                                        \
    } while (0)

#define EXPECT(condition)                                                        \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::printf("wrong: line %d: %s\nFAILED\n", __LINE__, #condition);   \
            std::fflush(stdout);                                                 \
            _exit(1);                                                            \
        }                                                                        \
    } while (0)

static CUcontext context;

// The driver's API from the start: memory there and back.
static void useDriver(unsigned seed) {
    CHECK(cuInit(0));
    CUdevice device;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    std::vector<unsigned> data(1000), back(1000);
    for (unsigned i = 0; i < data.size(); i++) data[i] = i * seed;
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 4000));
    CHECK(cuMemcpyHtoD(memory, data.data(), 4000));
    CHECK(cuMemsetD32(memory + 400, seed, 50));
    CHECK(cuMemcpyDtoH(back.data(), memory, 4000));
    for (unsigned i = 0; i < data.size(); i++) EXPECT(back[i] == (i >= 100 && i < 150 ? seed : i * seed));
    CHECK(cuMemFree(memory));
}

// A runtime library of its own, opened and closed again.
static void useRuntime(int round) {
    void *library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != nullptr);
    auto allocate = reinterpret_cast<int (*)(void **, size_t)>(dlsym(library, "cudaMalloc"));
    auto release = reinterpret_cast<int (*)(void *)>(dlsym(library, "cudaFree"));
    auto copy = reinterpret_cast<int (*)(void *, const void *, size_t, int)>(dlsym(library, "cudaMemcpy"));
    EXPECT(allocate != nullptr && release != nullptr && copy != nullptr);
    void *memory;
    int there = 1234 + round, back = 0;
    CHECK(allocate(&memory, 4));
    CHECK(copy(memory, &there, 4, 4));
    CHECK(copy(&back, memory, 4, 4));
    EXPECT(back == there);
    CHECK(release(memory));
    EXPECT(dlclose(library) == 0);
}

template <class Body>
static int inChild(Body body) {
    std::fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

int main(int count, char **arguments) {
    if (count > 1 && std::strcmp(arguments[1], "exec") == 0) {
        useDriver(5);
        return 42;
    }
    // Before anything is initialised, children may do so, each for itself.
    for (unsigned seed = 1; seed <= 3; seed++) EXPECT(inChild([=] { useDriver(seed); }) == 0);
    useDriver(7);
    for (int round = 0; round < 3; round++) useRuntime(round);
    useDriver(11);

    // Afterwards a child has no CUDA, is told so, and its parent does not notice.
    EXPECT(inChild([] {
               CUdeviceptr memory;
               int devices;
               EXPECT(cuMemAlloc(&memory, 4) == CUDA_ERROR_NOT_INITIALIZED);
               EXPECT(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
               EXPECT(cuDeviceGetCount(&devices) == CUDA_ERROR_NOT_INITIALIZED);
               EXPECT(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED);
           }) == 0);
    useDriver(13);
    // A new program in the child starts afresh, though the parent's connection is open.
    int status = inChild([=] {
        execl("/proc/self/exe", arguments[0], "exec", static_cast<char *>(nullptr));
        _exit(1);
    });
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    useDriver(17);

    // Threads that go on calling while the program ends.
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 1 << 16));
    for (int thread = 0; thread < 8; thread++)
        std::thread([=] {
            cuCtxSetCurrent(context);
            for (;;) {
                cuMemsetD8Async(memory, thread, 1 << 16, nullptr);
                if (cuStreamSynchronize(nullptr) != CUDA_SUCCESS) return;
            }
        }).detach();
    usleep(20000);
    std::atexit([] { cuCtxSynchronize(); });
    std::printf("lifetimes\nPASSED\n");
    return 0;
}
