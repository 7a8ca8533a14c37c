// Memory and addresses apart, as allocators with growing segments use them: a segment grows chunk by chunk under one pointer,
// shrinks from its middle, and a chunk moves to another address with its contents.
#include "driver.h"

__global__ void count(unsigned *data, size_t n, unsigned by) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < n) data[i] = static_cast<unsigned>(i) * by;
}

// Reads across the borders of chunks: pairs that lie on both sides.
__global__ void neighbours(const unsigned *data, size_t n, unsigned long long *sum) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i + 1 < n) atomicAdd(sum, static_cast<unsigned long long>(data[i + 1] - data[i]));
}

int main() {
    CHECK(cudaFree(nullptr));
    USE(cuDeviceGet);
    USE(cuDeviceGetAttribute);
    USE(cuMemAddressReserve);
    USE(cuMemAddressFree);
    USE(cuMemCreate);
    USE(cuMemRelease);
    USE(cuMemMap);
    USE(cuMemUnmap);
    USE(cuMemSetAccess);
    USE(cuMemGetAllocationGranularity);
    USE(cuMemRetainAllocationHandle);
    int supported;
    CUdevice device;
    DRIVER(cuDeviceGet(&device, 0));
    DRIVER(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    expect(supported == 1, "not supported");
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    size_t chunk;
    DRIVER(cuMemGetAllocationGranularity(&chunk, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    size_t freeBefore, freeNow, total;
    CHECK(cudaMemGetInfo(&freeBefore, &total));

    const int chunks = 4;
    CUdeviceptr segment;
    DRIVER(cuMemAddressReserve(&segment, 16 * chunk, 0, 0, 0));
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle[chunks];
    auto grow = [&](int index) {
        DRIVER(cuMemCreate(&handle[index], chunk, &properties, 0));
        DRIVER(cuMemMap(segment + index * chunk, chunk, 0, handle[index], 0));
        DRIVER(cuMemSetAccess(segment + index * chunk, chunk, &access, 1));
    };
    for (int index = 0; index < chunks; index++) grow(index);
    CHECK(cudaMemGetInfo(&freeNow, &total));
    expect(freeBefore - freeNow == chunks * chunk, "%zu bytes are gone, expected %zu", freeBefore - freeNow, chunks * chunk);

    // One array over all chunks: kernels, fills and copies across their borders.
    unsigned *data = reinterpret_cast<unsigned *>(segment);
    size_t n = chunks * chunk / sizeof(unsigned);
    unsigned long long *sum = upload(std::vector<unsigned long long>(1, 0));
    CHECK(cudaMemset(data, 0xff, chunks * chunk));
    count<<<(n + 255) / 256, 256>>>(data, n, 3);
    neighbours<<<(n + 255) / 256, 256>>>(data, n, sum);
    CHECK(cudaDeviceSynchronize());
    unsigned long long found = download(sum, 1)[0];
    expect(found == 3ull * (n - 1), "sum %llu, expected %llu", found, 3ull * (n - 1));
    size_t at = chunk / sizeof(unsigned) - 100;
    std::vector<unsigned> border = download(data + at, 200);
    for (size_t i = 0; i < 200; i++) expect(border[i] == 3 * (at + i), "%zu: %u", at + i, border[i]);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, data + at));
    expect(attributes.type == cudaMemoryTypeDevice, "type %d", attributes.type);

    // The second chunk moves behind the others, with what is in it; its place can be filled again.
    DRIVER(cuMemUnmap(segment + chunk, chunk));
    std::vector<unsigned> gap(200);
    cudaError_t error = cudaMemcpy(gap.data(), data + at, 800, cudaMemcpyDeviceToHost);
    expect(error == cudaErrorInvalidValue, "a gap was read: %s", cudaGetErrorName(error));
    cudaGetLastError();
    DRIVER(cuMemMap(segment + 6 * chunk, chunk, 0, handle[1], 0));
    DRIVER(cuMemSetAccess(segment + 6 * chunk, chunk, &access, 1));
    size_t perChunk = chunk / sizeof(unsigned);
    std::vector<unsigned> moved = download(data + 6 * perChunk, perChunk);
    for (size_t i = 0; i < perChunk; i += 97) expect(moved[i] == 3 * (perChunk + i), "moved %zu: %u", i, moved[i]);
    CUmemGenericAllocationHandle again;
    DRIVER(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(segment + 6 * chunk + 100)));
    expect(again == handle[1], "another handle");
    DRIVER(cuMemRelease(again));
    CUmemGenericAllocationHandle first = handle[1];
    grow(1);
    count<<<(n + 255) / 256, 256>>>(data, n, 5);
    CHECK(cudaDeviceSynchronize());
    border = download(data + at, 200);
    for (size_t i = 0; i < 200; i++) expect(border[i] == 5 * (at + i), "again %zu: %u", at + i, border[i]);

    // Mistakes are errors.
    expect(cuMemMap(segment + chunk, chunk, 0, first, 0) != CUDA_SUCCESS, "mapped over another");
    expect(cuMemUnmap(segment, chunk / 2) == CUDA_ERROR_INVALID_VALUE, "half a chunk was unmapped");
    expect(cuMemAddressFree(segment, 16 * chunk) != CUDA_SUCCESS, "addresses in use were freed");
    expect(cuMemCreate(&again, chunk + 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE, "an odd size");
    expect(cuMemRelease(12345) == CUDA_ERROR_INVALID_VALUE, "a made-up handle");

    // Released memory lives until it is unmapped, then all is back.
    for (CUmemGenericAllocationHandle one : handle) DRIVER(cuMemRelease(one));
    DRIVER(cuMemRelease(first));
    expect(download(data, 10)[9] == 45, "released memory is gone before it was unmapped");
    DRIVER(cuMemUnmap(segment, chunks * chunk));
    DRIVER(cuMemUnmap(segment + 6 * chunk, chunk));
    DRIVER(cuMemAddressFree(segment, 16 * chunk));
    CHECK(cudaFree(sum));
    CHECK(cudaMemGetInfo(&freeNow, &total));
    expect(freeNow == freeBefore, "%zd bytes are missing", static_cast<ssize_t>(freeBefore - freeNow));
    std::printf("vmm chunks=%d\n", chunks);
    return verdict();
}
