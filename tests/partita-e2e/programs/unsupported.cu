// nvcc: -gencode arch=compute_90a,code=compute_90a
// A module with one kernel that the emulated GPU cannot run: the other one runs, and the launch of the refused one fails.
#include "check.h"

__global__ void good(int *data) { data[threadIdx.x] = 3 * threadIdx.x; }

__global__ void refused(int *data) {
    data[threadIdx.x] = 1;
    asm volatile("multimem.red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(data) : "memory");
}

int main() {
    int *data = upload(std::vector<int>(32, 0));
    good<<<1, 32>>>(data);
    CHECK(cudaDeviceSynchronize());
    std::vector<int> found = download(data, 32);
    for (int i = 0; i < 32; i++) expect(found[i] == 3 * i, "element %d is %d", i, found[i]);
    refused<<<1, 32>>>(data);
    cudaError_t error = cudaGetLastError();
    expect(error != cudaSuccess, "a kernel that cannot run was launched");
    good<<<1, 32>>>(data);
    CHECK(cudaDeviceSynchronize());
    std::printf("unsupported %s\n", cudaGetErrorName(error));
    return verdict();
}
