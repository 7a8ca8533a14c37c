// Launches that one form of a kernel does not serve: blocks whose rows do not fill warps, blocks that meet at a barrier of
// the program's own, all of an SM's shared memory. And functions that ask where in the grid they are.
#include "check.h"

// Only threads of the first 32 columns take part. Whether those are whole warps is the block's business.
__global__ void sums(const int *in, int *out) {
    if (threadIdx.x >= 32) return;
    int row = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int value = in[blockIdx.x * 256 + row];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    if (row % 32 == 0) atomicAdd(&out[blockIdx.x], value);
}

__device__ unsigned int arrived;

__global__ void meeting(int *marks, int *late) {
    if (threadIdx.x == 0) {
        marks[blockIdx.x] = 1;
        __threadfence();
        atomicAdd(&arrived, 1);
        while (*(volatile unsigned int *)&arrived < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x)
        if (((volatile int *)marks)[i] == 0) atomicAdd(late, 1);
}

extern __shared__ int scratch[];

__global__ void reversed(int *values, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) scratch[i] = values[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] = scratch[n - 1 - i];
}

__device__ __noinline__ int place() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
__device__ __noinline__ int twice(int offset) { return 2 * place() + offset; }

__global__ void places(int *out) { out[place() * blockDim.x + threadIdx.x] = twice(threadIdx.x); }

int main() {
    Random random;
    std::vector<int> in(100 * 256);
    for (int &value : in) value = random.next() % 1000;
    int *from = upload(in);
    for (dim3 block : {dim3(256), dim3(16, 16), dim3(64, 4), dim3(8, 8, 4)}) {
        int *to = upload(std::vector<int>(100));
        sums<<<100, block>>>(from, to);
        std::vector<int> found = download(to, 100);
        for (int i = 0; i < 100; i++) {
            int sum = 0;
            for (int j = 0; j < 256; j++) sum += j % block.x < 32 ? in[i * 256 + j] : 0;
            expect(found[i] == sum, "block %d,%d: %d is %d, not %d", block.x, block.y, i, found[i], sum);
        }
    }

    int processors, perProcessor;
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&perProcessor, meeting, 64, 0));
    int blocks = processors * perProcessor, *marks = upload(std::vector<int>(blocks)), *late = upload(std::vector<int>(1));
    void *arguments[] = {&marks, &late};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(meeting), dim3(blocks), dim3(64), arguments, 0, nullptr));
    expect(download(late, 1)[0] == 0, "blocks went on before all had come");

    int most;
    CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CHECK(cudaFuncSetAttribute(reversed, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    std::vector<int> values(most / 4);
    for (size_t i = 0; i < values.size(); i++) values[i] = i;
    int n = values.size(), *line = upload(values);
    reversed<<<1, 256, most>>>(line, n);
    std::vector<int> turned = download(line, n);
    for (int i = 0; i < n; i++) expect(turned[i] == n - 1 - i, "reversed: %d is %d", i, turned[i]);

    dim3 grid(7, 5, 3);
    int total = 105 * 32, *where = blank<int>(total);
    places<<<grid, 32>>>(where);
    std::vector<int> found = download(where, total);
    for (int i = 0; i < total; i++) expect(found[i] == 2 * (i / 32) + i % 32, "place %d is %d", i, found[i]);
    CHECK(cudaGetLastError());
    std::printf("forms blocks=%d shared=%d\n", blocks, most);
    return verdict();
}
