// Allocation in stream order: temporary memory from the pool between kernels, used again by later ones.
#include "check.h"

__global__ void fill(int *data, int n, int start) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = start + i;
}

__global__ void addAll(const int *data, int n, unsigned long long *sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(sum, static_cast<unsigned long long>(data[i]));
}

int main() {
    int device, supported;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device));
    expect(supported == 1, "memory pools are not supported");
    const int streams = 3, rounds = 40;
    cudaStream_t stream[streams];
    unsigned long long *sums = upload(std::vector<unsigned long long>(streams, 0)), expected[streams] = {};
    for (cudaStream_t &s : stream) CHECK(cudaStreamCreate(&s));
    for (int round = 0; round < rounds; round++)
        for (int s = 0; s < streams; s++) {
            int n = 1 + (round * 7919 + s * 104729) % 6000, *data;
            CHECK(cudaMallocAsync(&data, n * sizeof(int), stream[s]));
            fill<<<(n + 127) / 128, 128, 0, stream[s]>>>(data, n, round * s);
            addAll<<<(n + 127) / 128, 128, 0, stream[s]>>>(data, n, sums + s);
            CHECK(cudaFreeAsync(data, stream[s]));
            expected[s] += static_cast<unsigned long long>(n) * (round * s) + static_cast<unsigned long long>(n) * (n - 1) / 2;
        }
    CHECK(cudaGetLastError());
    for (cudaStream_t s : stream) CHECK(cudaStreamSynchronize(s));
    std::vector<unsigned long long> found = download(sums, streams);
    for (int s = 0; s < streams; s++) expect(found[s] == expected[s], "stream %d: %llu, expected %llu", s, found[s], expected[s]);

    cudaMemPool_t pool;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, device));
    unsigned long long used = 1;
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    expect(used == 0, "%llu bytes are still in use", used);
    CHECK(cudaMemPoolTrimTo(pool, 0));
    std::printf("async_alloc rounds=%d sum0=%llu\n", rounds, found[0]);
    return verdict();
}
