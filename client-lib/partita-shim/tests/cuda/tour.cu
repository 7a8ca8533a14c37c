// Visits the runtime API: every call that an ordinary program makes, with its result checked.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>

__device__ float factor;

__global__ void scale(float *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= factor;
}

#define CHECK(x)                                                                                       \
    do {                                                                                               \
        cudaError_t error = (x);                                                                       \
        if (error != cudaSuccess) {                                                                    \
            printf("FAIL line %d: %s: %s\n", __LINE__, #x, cudaGetErrorString(error));                 \
            return 1;                                                                                  \
        }                                                                                              \
    } while (0)
#define EXPECT(x)                                                                                      \
    do {                                                                                               \
        if (!(x)) {                                                                                    \
            printf("FAIL line %d: %s\n", __LINE__, #x);                                                \
            return 1;                                                                                  \
        }                                                                                              \
    } while (0)

static int device() {
    int count = 0, version = 0, threads = 0;
    CHECK(cudaGetDeviceCount(&count));
    EXPECT(count == 1);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    EXPECT(strlen(properties.name) > 0 && properties.major == 9 && properties.multiProcessorCount > 0);
    CHECK(cudaDriverGetVersion(&version));
    EXPECT(version >= 13000);
    CHECK(cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerBlock, 0));
    EXPECT(threads == 1024);
    size_t free_bytes, total_bytes;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(free_bytes > 0 && free_bytes <= total_bytes);
    EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError());
    return 0;
}

static int copies() {
    const int n = 300000;
    std::vector<int> in(n), out(n);
    for (int i = 0; i < n; i++) in[i] = i * 7;
    int *a, *b;
    CHECK(cudaMalloc(&a, n * sizeof(int)));
    CHECK(cudaMalloc(&b, n * sizeof(int)));
    CHECK(cudaMemcpy(a, in.data(), n * sizeof(int), cudaMemcpyDefault));
    CHECK(cudaMemcpy(b, a, n * sizeof(int), cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(out.data(), b, n * sizeof(int), cudaMemcpyDefault));
    EXPECT(in == out);
    CHECK(cudaMemset(b, 0x5a, 1000));
    CHECK(cudaMemcpy(out.data(), b, 1004, cudaMemcpyDeviceToHost));
    EXPECT(out[0] == 0x5a5a5a5a && out[249] == 0x5a5a5a5a && out[250] == in[250]);

    // A picture of 10 rows of 12 bytes, and a part of it.
    unsigned char *picture, rows[10][12], part[4][5];
    size_t pitch;
    CHECK(cudaMallocPitch(&picture, &pitch, 12, 10));
    EXPECT(pitch >= 12);
    for (int y = 0; y < 10; y++)
        for (int x = 0; x < 12; x++) rows[y][x] = y * 16 + x;
    CHECK(cudaMemcpy2D(picture, pitch, rows, 12, 12, 10, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(part, 5, picture + 3 * pitch + 2, pitch, 5, 4, cudaMemcpyDeviceToHost));
    EXPECT(part[0][0] == 3 * 16 + 2 && part[3][4] == 6 * 16 + 6);
    CHECK(cudaMemset2D(picture, pitch, 0xee, 6, 3));
    CHECK(cudaMemcpy2D(rows, 12, picture, pitch, 12, 10, cudaMemcpyDeviceToHost));
    EXPECT(rows[2][5] == 0xee && rows[2][6] == 2 * 16 + 6 && rows[3][0] == 3 * 16);

    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, a));
    EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 && attributes.devicePointer == a);
    CHECK(cudaPointerGetAttributes(&attributes, in.data()));
    EXPECT(attributes.type == cudaMemoryTypeUnregistered);
    void *pinned;
    CHECK(cudaMallocHost(&pinned, 10000));
    CHECK(cudaPointerGetAttributes(&attributes, pinned));
    EXPECT(attributes.type == cudaMemoryTypeHost);
    CHECK(cudaMemcpyAsync(pinned, a, 10000, cudaMemcpyDeviceToHost, 0));
    CHECK(cudaStreamSynchronize(0));
    EXPECT(memcmp(pinned, in.data(), 10000) == 0);
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFree(picture));
    CHECK(cudaFree(nullptr));
    void *large;
    EXPECT(cudaMalloc(&large, size_t(1) << 50) == cudaErrorMemoryAllocation);
    cudaGetLastError();
    return 0;
}

static int pools() {
    cudaStream_t stream;
    cudaMemPool_t pool;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    int *first, *second, value = 0;
    unsigned long long used = 1;
    CHECK(cudaMallocAsync(&first, 5000, stream));
    CHECK(cudaMemsetAsync(first, 0x11, 5000, stream));
    CHECK(cudaFreeAsync(first, stream));
    EXPECT(cudaFreeAsync(first, stream) == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaMallocAsync(&second, 4000, stream));
    EXPECT(second == first);
    CHECK(cudaMemcpyAsync(&value, second + 999, 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(value == 0x11111111);
    CHECK(cudaFreeAsync(second, stream));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    EXPECT(used == 0);
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &used));
    EXPECT(used == 0);
    CHECK(cudaStreamDestroy(stream));
    return 0;
}

static void CUDART_CB count_up(void *counter) { ++*static_cast<int *>(counter); }

static int streams() {
    const int n = 1000;
    std::vector<float> data(n, 2.0f), result(n);
    float *d, three = 3.0f;
    cudaStream_t stream, other;
    cudaEvent_t start, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, -1));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaMalloc(&d, n * sizeof(float)));
    CHECK(cudaMemcpyToSymbol(factor, &three, sizeof three));
    CHECK(cudaEventRecord(start, stream));
    CHECK(cudaMemcpyAsync(d, data.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream));
    scale<<<4, 256, 0, stream>>>(d, n);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaStreamWaitEvent(other, end, 0));
    CHECK(cudaMemcpyAsync(result.data(), d, n * sizeof(float), cudaMemcpyDeviceToHost, other));
    int called = 0;
    CHECK(cudaLaunchHostFunc(other, count_up, &called));
    CHECK(cudaStreamSynchronize(other));
    EXPECT(called == 1);
    for (float value : result) EXPECT(value == 6.0f);
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventQuery(end));
    CHECK(cudaStreamQuery(stream));
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, start, end));
    EXPECT(milliseconds > 0);
    float back;
    CHECK(cudaMemcpyFromSymbol(&back, factor, sizeof back));
    EXPECT(back == 3.0f);
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(other));
    CHECK(cudaFree(d));
    return 0;
}

static int kernels() {
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, scale));
    EXPECT(attributes.maxThreadsPerBlock > 0 && attributes.numRegs > 0);
    int blocks = 0, grid = 0, block = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0));
    EXPECT(blocks > 0);
    CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, scale, 0, 0));
    EXPECT(grid > 0 && block >= 32);
    CHECK(cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    EXPECT(cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30) != cudaSuccess);
    cudaGetLastError();
    scale<<<1, 2000>>>(nullptr, 0);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    scale<<<0, 32>>>(nullptr, 0);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    float *d;
    CHECK(cudaMalloc(&d, 4));
    int n = 1;
    void *arguments[] = {&d, &n};
    CHECK(cudaLaunchKernel((const void *)scale, dim3(1), dim3(32), arguments, 0, nullptr));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(32);
    CHECK(cudaLaunchKernelEx(&config, scale, d, n));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(d));
    return 0;
}

static int threads() {
    int failed[8] = {};
    std::vector<std::thread> all;
    for (int t = 0; t < 8; t++)
        all.emplace_back([t, &failed] {
            auto work = [t]() -> int {
                for (int round = 0; round < 20; round++) {
                    int *d, value = t * 1000 + round, back = -1;
                    CHECK(cudaMalloc(&d, sizeof value));
                    CHECK(cudaMemcpyAsync(d, &value, sizeof value, cudaMemcpyHostToDevice, cudaStreamPerThread));
                    CHECK(cudaMemcpyAsync(&back, d, sizeof back, cudaMemcpyDeviceToHost, cudaStreamPerThread));
                    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
                    EXPECT(back == value);
                    CHECK(cudaFree(d));
                }
                return 0;
            };
            failed[t] = work();
        });
    for (auto &thread : all) thread.join();
    for (int f : failed) EXPECT(f == 0);
    return 0;
}

static int forks() {
    pid_t child = fork();
    if (child == 0) {
        void *d;
        cudaError_t error = cudaMalloc(&d, 4);
        // Exit handlers of the runtime run in the child, too.
        exit(error == cudaErrorInitializationError ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}

static int reset() {
    CHECK(cudaDeviceReset());
    float *d, value = 5.0f, factor_value = 2.0f;
    CHECK(cudaMalloc(&d, sizeof value));
    CHECK(cudaMemcpyToSymbol(factor, &factor_value, sizeof factor_value));
    CHECK(cudaMemcpy(d, &value, sizeof value, cudaMemcpyHostToDevice));
    scale<<<1, 32>>>(d, 1);
    CHECK(cudaMemcpy(&value, d, sizeof value, cudaMemcpyDeviceToHost));
    EXPECT(value == 10.0f);
    return 0;
}

int main() {
    int (*const stops[])() = {device, copies, pools, streams, kernels, threads, forks, reset};
    for (auto stop : stops)
        if (stop()) return 1;
    printf("PASS\n");
    return 0;
}
