// Copies until a copy fails; then nothing else works either, and nothing hangs.
#include <cstdio>

int main() {
    int *d, value = 7;
    if (cudaMalloc(&d, sizeof value) != cudaSuccess) return 1;
    printf("running\n");
    fflush(stdout);
    cudaError_t error;
    do {
        error = cudaMemcpy(d, &value, sizeof value, cudaMemcpyHostToDevice);
    } while (error == cudaSuccess);
    cudaError_t synchronised = cudaDeviceSynchronize();
    cudaError_t allocated = cudaMalloc(&d, sizeof value);
    printf("%d %d %d\n", error, synchronised, allocated);
    return 0;
}
