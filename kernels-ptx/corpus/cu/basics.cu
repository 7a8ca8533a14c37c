// Source of PTX for the printer's oracle: plain CUDA, one kernel per thing that PTX writes differently.
#include <cstdio>
#include <cuda_fp16.h>

__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter;
__device__ const char *names[2] = {"ab", "cd"};
extern __shared__ float dynamic[];

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

__global__ void reduce(const float *a, float *out, int n) {
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? a[i] : 0;
    __syncthreads();
    for (int k = 128; k; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (!t) atomicAdd(out, s[0]);
}

__global__ void early(const float *a, float *out, int n) {
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (i >= n) return;
    s[t] = a[i];
    __syncthreads();
    out[i] = s[t ^ 1] + table[i & 3];
}

__global__ void shuffle(int *a) {
    int v = a[threadIdx.x];
    for (int k = 16; k; k >>= 1) v += __shfl_down_sync(~0u, v, k);
    if (!threadIdx.x) a[blockIdx.x] = v;
}

__device__ __noinline__ float recurse(float x, int d) {
    return d ? recurse(x * 0.5f, d - 1) + blockIdx.x : sinf(x);
}
__global__ void call(float *a, int d) { a[threadIdx.x] = recurse(a[threadIdx.x], d); }

__global__ void print(int *a) {
    printf("%d %s\n", a[0], names[a[1] & 1]);
    atomicAdd(&counter, 1);
}

struct Large {
    int a[20];
    double d;
};
__global__ void large(Large s, double *o) { o[threadIdx.x] = s.d + s.a[threadIdx.x % 20]; }

__global__ void halves(__half2 *a) { a[threadIdx.x] = __hfma2(a[threadIdx.x], a[1], a[2]); }

__global__ void __launch_bounds__(128, 4) bounded(float *o) {
    dynamic[threadIdx.x] = o[threadIdx.x];
    __syncthreads();
    o[threadIdx.x] = dynamic[127 - threadIdx.x];
}

__global__ void select(int *a, int k) {
    switch (k) {
    case 0: a[0] = 1; break;
    case 1: a[1] = 7; break;
    case 2: a[2] = 8; break;
    case 3: a[3] *= 3; break;
    case 4: a[4] = a[7] / a[8]; break;
    case 9: a[9] = 2;
    }
}

__global__ void local(int *a, int k) {
    int l[64];
    for (int i = 0; i < 64; i++) l[i] = a[i];
    for (int i = 0; i < k; i++) l[(i * 7) & 63] += l[i & 63];
    a[threadIdx.x] = l[k & 63];
}

typedef float (*Function)(float);
__device__ float one(float x) { return x + 1; }
__device__ float two(float x) { return x * 2; }
__device__ Function functions[2] = {one, two};
__global__ void indirect(float *a, int k) { a[0] = functions[k](a[0]); }

__global__ void three(int *a) {
    a[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = threadIdx.x + clock();
}
