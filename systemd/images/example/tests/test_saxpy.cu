// y = a x + y, for lengths around a block's.
#include "check.h"
#include <vector>

__global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

static void check(int n) {
    std::vector<float> x(n), y(n);
    for (int i = 0; i < n; i++) x[i] = static_cast<float>(i), y[i] = 1.0f;
    float *device_x, *device_y;
    CUDA(cudaMalloc(&device_x, n * sizeof(float)));
    CUDA(cudaMalloc(&device_y, n * sizeof(float)));
    CUDA(cudaMemcpy(device_x, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(device_y, y.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    saxpy<<<(n + 255) / 256, 256>>>(n, 2.0f, device_x, device_y);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(y.data(), device_y, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(y[i] == 2.0f * static_cast<float>(i) + 1.0f);
    CUDA(cudaFree(device_x));
    CUDA(cudaFree(device_y));
}

int main() {
    for (int n : {1, 255, 256, 257, 100000}) check(n);
    std::puts("ok saxpy");
    return 0;
}
