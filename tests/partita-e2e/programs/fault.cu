// Writes where nothing was allocated; prints the error that CUDA gives.  Usage: fault
#include <cstdio>

__global__ void wild(int *p, long offset) {
    if (blockIdx.x == 3 && threadIdx.x == 5) p[offset] = 1;
}

int main() {
    int *p;
    if (cudaMalloc(&p, 1024) != cudaSuccess) return 2;
    wild<<<8, 64>>>(p, 1L << 40);
    cudaError_t error = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorName(error));
    std::printf("%s\n", cudaGetErrorName(cudaMemset(p, 0, 4)));
    return error == cudaSuccess ? 1 : 0;
}
