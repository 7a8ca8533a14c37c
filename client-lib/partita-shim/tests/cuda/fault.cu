// A kernel that faults: the error comes with the next synchronisation and sticks.
#include <cstdio>

__global__ void fault() { *(volatile int *)nullptr = 1; }

int main() {
    fault<<<1, 1>>>();
    cudaError_t launched = cudaGetLastError();
    cudaError_t synchronised = cudaDeviceSynchronize();
    void *d;
    cudaError_t allocated = cudaMalloc(&d, 4);
    printf("%d %d %d\n", launched, synchronised, allocated);
    return 0;
}
