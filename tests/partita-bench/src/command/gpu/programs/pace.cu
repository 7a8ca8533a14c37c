// Repeats one launch for as long as its standard input is open, and says how far it has got: a line "LAUNCHES NANOSECONDS" for each
// batch, both counted from the beginning, the time by CUDA's events. The next batch is queued before a line is written, so
// that the GPU never waits for this program.
// Usage: pace compute|memory|short|gemm BATCH_MICROSECONDS
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <poll.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t error = (call);                                                     \
        if (error != cudaSuccess) {                                                     \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));         \
            std::exit(1);                                                               \
        }                                                                               \
    } while (0)

// Arithmetic, some microseconds of it for each CTA.
__global__ void compute(uint32_t *out) {
    uint32_t x = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < 512; k++) x = (x ^ (x >> 7)) * 1664525u + 1013904223u;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// The triad of STREAM.
__global__ void memory(float4 *a, const float4 *b, const float4 *c, int quads) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    float4 x = b[i], y = c[i];
    a[i] = make_float4(x.x + 3 * y.x, x.y + 3 * y.y, x.z + 3 * y.z, x.w + 3 * y.w);
}

// A launch that is over at once.
__global__ void brief(uint32_t *out) { out[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

static int sms, l2;
static void *first, *second, *third;

static void grow(size_t bytes, int count) {
    void **all[] = {&first, &second, &third};
    for (int i = 0; i < count; i++) {
        CHECK(cudaMalloc(all[i], bytes));
        CHECK(cudaMemset(*all[i], 0, bytes));
    }
}

static int quads;

// cuBLAS by its functions' names: whoever builds this needs neither its headers nor itself.
typedef int (*Create)(void **);
typedef int (*Sgemm)(void *, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int);
static void *blas;
static Sgemm sgemm;
static const int N = 2048;

static void open_blas() {
    const char *names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = nullptr;
    for (const char *name : names)
        if (!library) library = dlopen(name, RTLD_NOW);
    Create create = library ? (Create)dlsym(library, "cublasCreate_v2") : nullptr;
    sgemm = library ? (Sgemm)dlsym(library, "cublasSgemm_v2") : nullptr;
    if (!create || !sgemm) {
        std::fprintf(stderr, "no cuBLAS: %s\n", library ? "it lacks functions" : dlerror());
        std::exit(3);
    }
    if (int status = create(&blas)) {
        std::fprintf(stderr, "cublasCreate: status %d\n", status);
        std::exit(1);
    }
}

static void launch(const char *kind) {
    if (!std::strcmp(kind, "compute")) compute<<<sms * 16, 256>>>((uint32_t *)first);
    else if (!std::strcmp(kind, "memory"))
        memory<<<(quads + 255) / 256, 256>>>((float4 *)first, (const float4 *)second, (const float4 *)third, quads);
    else if (!std::strcmp(kind, "short")) brief<<<sms, 256>>>((uint32_t *)first);
    else {
        const float one = 1, zero = 0;
        const float *a = (const float *)first, *b = (const float *)second;
        if (int status = sgemm(blas, 0, 0, N, N, N, &one, a, N, b, N, &zero, (float *)third, N)) {
            std::fprintf(stderr, "cublasSgemm: status %d\n", status);
            std::exit(1);
        }
    }
}

static bool wanted() {
    pollfd input = {0, POLLIN | POLLHUP, 0};
    return poll(&input, 1, 0) == 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: pace compute|memory|short|gemm BATCH_MICROSECONDS\n");
        return 2;
    }
    const char *kind = argv[1];
    double batch_us = std::atof(argv[2]);
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0));
    if (!std::strcmp(kind, "memory")) {
        // Far more than the LLC holds.
        size_t bytes = (size_t)l2 * 2;
        quads = (int)(bytes / sizeof(float4));
        grow(bytes, 3);
    } else if (!std::strcmp(kind, "gemm")) {
        open_blas();
        grow((size_t)N * N * sizeof(float), 3);
    } else {
        grow((size_t)sms * 16 * 256 * sizeof(uint32_t), 1);
    }
    cudaEvent_t marks[3];
    for (cudaEvent_t &mark : marks) CHECK(cudaEventCreate(&mark));
    float ms;
    // How many launches a batch has; the first may take longer than those behind it.
    launch(kind);
    CHECK(cudaEventRecord(marks[0]));
    for (int k = 0; k < 4; k++) launch(kind);
    CHECK(cudaEventRecord(marks[1]));
    CHECK(cudaEventSynchronize(marks[1]));
    CHECK(cudaEventElapsedTime(&ms, marks[0], marks[1]));
    long batch = (long)(batch_us / (ms * 1e3 / 4 + 1e-3)) + 1, done = 0;
    if (batch > 4000) batch = 4000;
    double nanos = 0;
    CHECK(cudaEventRecord(marks[0]));
    for (long k = 0; k < batch; k++) launch(kind);
    CHECK(cudaEventRecord(marks[1]));
    for (int at = 0; wanted(); at = (at + 1) % 3) {
        for (long k = 0; k < batch; k++) launch(kind);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(marks[(at + 2) % 3]));
        CHECK(cudaEventSynchronize(marks[(at + 1) % 3]));
        CHECK(cudaEventElapsedTime(&ms, marks[at], marks[(at + 1) % 3]));
        nanos += ms * 1e6;
        done += batch;
        std::printf("%ld %.0f\n", done, nanos);
        std::fflush(stdout);
    }
    return 0;
}
