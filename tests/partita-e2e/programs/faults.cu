// Does one thing that no kernel may do, and prints the error that CUDA gives, and the one that the next call gives.
// Usage: faults WHAT
#include <cstdio>
#include <cstring>

__constant__ int table[4] = {1, 2, 3, 4};

__global__ void store(int *p, long offset) { p[offset + threadIdx.x] = 1; }
__global__ void loadWide(const char *p, int4 *out) { *out = *reinterpret_cast<const int4 *>(p); }
__global__ void writeConstant(int *p) { *p = table[threadIdx.x % 4]; }
__global__ void sharedBeyond(int *p, int size) {
    extern __shared__ int room[];
    room[threadIdx.x * size] = 1;
    __syncthreads();
    p[threadIdx.x] = room[0];
}
__device__ __noinline__ int deeper(int depth, volatile int *p) {
    volatile int frame[64];
    frame[depth % 64] = depth;
    return *p < 0 ? 0 : deeper(depth + 1, p) + frame[depth % 64];
}
__global__ void recurse(int *p) { *p = deeper(0, p); }
__global__ void callThrough(void (*f)(int *), int *p) { f(p); }
__global__ void stop() { __trap(); }
__global__ void breakHere() { __brkpt(); }
__global__ void freeWrong(int *p) { free(p + 1); }
__global__ void fetch(cudaTextureObject_t texture, float *out) { *out = tex1Dfetch<float>(texture, 0); }
__global__ void paint(cudaSurfaceObject_t surface, int x) { surf2Dwrite(1.0f, surface, x, 0); }
__global__ void barrier(int *p) {
    asm volatile("barrier.sync 1, 96;");
    *p = 1;
}

#define MUST(call)                                                                                   \
    do {                                                                                             \
        cudaError_t error_ = (call);                                                                 \
        if (error_ != cudaSuccess) {                                                                 \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(error_));                       \
            return 2;                                                                                \
        }                                                                                            \
    } while (0)

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    auto is = [&](const char *name) { return std::strcmp(what, name) == 0; };
    int *p, *freed;
    MUST(cudaMalloc(&p, 256));
    MUST(cudaMemset(p, 0, 256));
    MUST(cudaMalloc(&freed, 256));
    MUST(cudaFree(freed));
    if (is("beyond")) {
        store<<<1, 96>>>(p, 0);
    } else if (is("freed")) {
        store<<<1, 32>>>(freed, 0);
    } else if (is("null")) {
        store<<<1, 32>>>(nullptr, 0);
    } else if (is("misaligned")) {
        loadWide<<<1, 1>>>(reinterpret_cast<char *>(p) + 8, reinterpret_cast<int4 *>(p));
    } else if (is("constant")) {
        int *address;
        MUST(cudaGetSymbolAddress(reinterpret_cast<void **>(&address), table));
        writeConstant<<<1, 1>>>(address);
    } else if (is("shared")) {
        sharedBeyond<<<1, 64, 256>>>(p, 2);
    } else if (is("recursion")) {
        recurse<<<1, 1>>>(p);
    } else if (is("call")) {
        callThrough<<<1, 1>>>(reinterpret_cast<void (*)(int *)>(0x1234), p);
    } else if (is("trap")) {
        stop<<<1, 1>>>();
    } else if (is("breakpoint")) {
        breakHere<<<1, 1>>>();
    } else if (is("free")) {
        freeWrong<<<1, 1>>>(p);
    } else if (is("barrier")) {
        barrier<<<1, 64>>>(p);
    } else if (is("texture")) {
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeLinear;
        resource.res.linear.devPtr = p;
        resource.res.linear.desc = cudaCreateChannelDesc<float>();
        resource.res.linear.sizeInBytes = 256;
        cudaTextureDesc description = {};
        cudaTextureObject_t texture;
        MUST(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
        MUST(cudaDestroyTextureObject(texture));
        fetch<<<1, 1>>>(texture, reinterpret_cast<float *>(p));
    } else if (is("surface")) {
        cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        MUST(cudaMallocArray(&resource.res.array.array, &channel, 8, 8, cudaArraySurfaceLoadStore));
        cudaSurfaceObject_t surface;
        MUST(cudaCreateSurfaceObject(&surface, &resource));
        paint<<<1, 1>>>(surface, 32);
    } else {
        std::fprintf(stderr, "no fault `%s`\n", what);
        return 2;
    }
    cudaError_t error = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorName(error));
    std::printf("%s\n", cudaGetErrorName(cudaMemset(p, 0, 4)));
    return 0;
}
