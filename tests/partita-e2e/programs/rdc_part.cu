// The second file of rdc.cu.
#include "check.h"

extern __device__ int shared_with_part;
__device__ int total;
__device__ int table[64];
__constant__ float weights[4] = {0.5f, 2.0f, -1.0f, 8.0f};

static __device__ int bias = 11;

static __device__ __noinline__ int twist(int value) { return 7 * value + bias; }

template <class T>
__device__ __noinline__ T common(T value) {
    return value + 1;
}

__device__ __noinline__ float weigh(float value, int which) { return value * weights[which]; }

__device__ __noinline__ int square(int value) { return value * value + common(49); }

extern __device__ int (*const chosen)(int);
__device__ int (*const chosen)(int) = square;

__global__ void tally(const int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&total, data[i]);
    if (i < 64) table[i] = i * 3 + shared_with_part;
}

__global__ void twistAll(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = twist(data[i]);
}

int hostPart(int *data, int n) {
    twistAll<<<(n + 127) / 128, 128>>>(data, n);
    return cudaDeviceSynchronize() == cudaSuccess ? n : -1;
}
