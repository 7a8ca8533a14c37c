// What a program learns about the device and its kernels before it starts: properties, attributes, occupancy, memory.
#include <cstring>

#include "check.h"

__global__ void __launch_bounds__(256) kernel(float *data) {
    __shared__ float tile[256];
    tile[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = tile[255 - threadIdx.x];
}

int main() {
    int device, driver, runtime;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    expect(driver >= runtime, "driver %d is older than runtime %d", driver, runtime);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, device));
    expect(std::strlen(properties.name) > 0, "no name");
    expect(properties.major * 10 + properties.minor >= 75, "compute capability %d.%d", properties.major, properties.minor);
    expect(properties.warpSize == 32, "warps of %d", properties.warpSize);
    expect(properties.maxThreadsPerBlock == 1024, "%d threads in a block", properties.maxThreadsPerBlock);
    expect(properties.maxThreadsPerMultiProcessor % 32 == 0, "%d threads on an SM", properties.maxThreadsPerMultiProcessor);
    expect(properties.sharedMemPerBlock >= 48 * 1024, "%zu bytes shared", properties.sharedMemPerBlock);
    expect(properties.maxGridSize[0] == 2147483647 && properties.maxGridSize[1] == 65535, "grid %d", properties.maxGridSize[0]);
    const struct {
        const char *name;
        cudaDeviceAttr attribute;
        int value;
    } pairs[] = {
        {"SMs", cudaDevAttrMultiProcessorCount, properties.multiProcessorCount},
        {"registers", cudaDevAttrMaxRegistersPerBlock, properties.regsPerBlock},
        {"L2", cudaDevAttrL2CacheSize, properties.l2CacheSize},
        {"major", cudaDevAttrComputeCapabilityMajor, properties.major},
        {"shared per SM", cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(properties.sharedMemPerMultiprocessor)},
        {"unified", cudaDevAttrUnifiedAddressing, properties.unifiedAddressing},
    };
    for (const auto &pair : pairs) {
        int value;
        CHECK(cudaDeviceGetAttribute(&value, pair.attribute, device));
        expect(value == pair.value, "%s: attribute %d, property %d", pair.name, value, pair.value);
    }

    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, kernel));
    expect(attributes.sharedSizeBytes == 1024, "%zu bytes of shared memory", attributes.sharedSizeBytes);
    expect(attributes.maxThreadsPerBlock == 256, "%d threads by the launch bounds", attributes.maxThreadsPerBlock);
    expect(attributes.numRegs > 0 && attributes.numRegs <= 255, "%d registers", attributes.numRegs);
    int blocks, size, grid;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0));
    expect(blocks >= 1 && blocks * 256 <= properties.maxThreadsPerMultiProcessor, "%d blocks on an SM", blocks);
    CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &size, kernel));
    // The least grid that fills the device with blocks of a size that the launch bounds allow.
    expect(size >= 32 && size <= 256 && size % 32 == 0, "blocks of %d", size);
    expect(grid >= properties.multiProcessorCount && grid % properties.multiProcessorCount == 0, "%d blocks", grid);

    size_t free, total, after;
    void *memory;
    CHECK(cudaMemGetInfo(&free, &total));
    expect(free <= total && total == properties.totalGlobalMem, "%zu of %zu free", free, total);
    CHECK(cudaMalloc(&memory, 32 << 20));
    CHECK(cudaMemGetInfo(&after, &total));
    expect(after + (32 << 20) <= free, "%zu free after 32 MB of %zu", after, free);
    CHECK(cudaFree(memory));
    CHECK(cudaMemGetInfo(&after, &total));
    expect(after >= free - (2 << 20), "%zu free in the end of %zu", after, free);
    char bus[32];
    CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    int same;
    CHECK(cudaDeviceGetByPCIBusId(&same, bus));
    expect(same == device, "device %d by its bus id", same);
    std::printf("device_query capability=%d.%d blocks=%d\n", properties.major, properties.minor, blocks);
    return verdict();
}
