// One piece of memory at several addresses, and what may be done to each: the same bytes for kernels, copies and fills, access that is
// asked for and kept to, memory that lives until its last address goes. What ends a context is tried in children of their own.
#include "driver.h"
#include <sys/wait.h>
#include <unistd.h>

__global__ void add(unsigned *data, size_t n, unsigned by) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < n) data[i] += by;
}

__global__ void differences(const unsigned *a, const unsigned *b, size_t n, unsigned *count) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < n && a[i] != b[i]) atomicAdd(count, 1);
}

__global__ void read_one(const unsigned *from, unsigned *to) { *to = *from; }

struct Vmm {
    USE_MEMBER(cuMemAddressReserve);
    USE_MEMBER(cuMemAddressFree);
    USE_MEMBER(cuMemCreate);
    USE_MEMBER(cuMemRelease);
    USE_MEMBER(cuMemMap);
    USE_MEMBER(cuMemUnmap);
    USE_MEMBER(cuMemSetAccess);
    USE_MEMBER(cuMemGetAccess);
    USE_MEMBER(cuMemRetainAllocationHandle);
    USE_MEMBER(cuMemGetAllocationPropertiesFromHandle);
    CUmemAllocationProp properties = {};
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    size_t chunk = 2 << 20;
    CUdeviceptr place = 0;

    Vmm() {
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = here;
        DRIVER(cuMemAddressReserve(&place, 16 * chunk, 0, 0, 0));
    }
    unsigned *at(int index) const { return reinterpret_cast<unsigned *>(place + index * chunk); }
    CUmemGenericAllocationHandle create(int chunks) const {
        CUmemGenericAllocationHandle handle;
        DRIVER(cuMemCreate(&handle, chunks * chunk, &properties, 0));
        return handle;
    }
    CUresult map(int index, int chunks, CUmemGenericAllocationHandle handle) const {
        return cuMemMap(place + index * chunk, chunks * chunk, 0, handle, 0);
    }
    CUresult allow(int index, int chunks, CUmemAccess_flags flags) const {
        CUmemAccessDesc access = {here, flags};
        return cuMemSetAccess(place + index * chunk, chunks * chunk, &access, 1);
    }
    CUresult unmap(int index, int chunks) const { return cuMemUnmap(place + index * chunk, chunks * chunk); }
    unsigned long long access(int index) const {
        unsigned long long flags = 99;
        DRIVER(cuMemGetAccess(&flags, &here, place + index * chunk + 4));
        return flags;
    }
};

// Runs in a process of its own, because it ends its context.
void child(const char *what, CUmemAccess_flags flags, cudaError_t expected, bool stores) {
    pid_t process = fork();
    if (process == 0) {
        CHECK(cudaFree(nullptr));
        Vmm vmm;
        auto handle = vmm.create(1);
        DRIVER(vmm.map(0, 1, handle));
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) DRIVER(vmm.allow(0, 1, flags));
        unsigned *word = blank<unsigned>(1);
        if (stores) {
            add<<<1, 32>>>(vmm.at(0), 32, 1);
        } else {
            read_one<<<1, 1>>>(vmm.at(0), word);
        }
        cudaError_t found = cudaDeviceSynchronize();
        if (found != expected) std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(found));
        _exit(found == expected ? 0 : 1);
    }
    int status = -1;
    waitpid(process, &status, 0);
    expect(status == 0, "%s: status %d", what, status);
}

int main() {
    child("a load without access", CU_MEM_ACCESS_FLAGS_PROT_NONE, cudaErrorIllegalAddress, false);
    child("a store to memory for reading", CU_MEM_ACCESS_FLAGS_PROT_READ, cudaErrorIllegalAddress, true);
    child("a load of memory for reading", CU_MEM_ACCESS_FLAGS_PROT_READ, cudaSuccess, false);
    child("a store", CU_MEM_ACCESS_FLAGS_PROT_READWRITE, cudaSuccess, true);

    CHECK(cudaFree(nullptr));
    size_t freeBefore, freeNow, total;
    // What the processes before had goes when the daemon has seen that they ended.
    freeBefore = 0;
    for (int unchanged = 0; unchanged < 20; usleep(10000)) {
        CHECK(cudaMemGetInfo(&freeNow, &total));
        unchanged = freeNow == freeBefore ? unchanged + 1 : 0;
        freeBefore = freeNow;
    }
    Vmm vmm;
    // Two chunks at 0, once more at 4, and the first of them at 8.
    auto handle = vmm.create(2);
    DRIVER(vmm.map(0, 2, handle));
    DRIVER(vmm.map(4, 2, handle));
    DRIVER(vmm.map(8, 1, handle));
    for (auto [index, chunks] : {std::pair{0, 2}, {4, 2}, {8, 1}})
        DRIVER(vmm.allow(index, chunks, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CHECK(cudaMemGetInfo(&freeNow, &total));
    expect(freeBefore - freeNow == 2 * vmm.chunk, "%zu bytes are gone", freeBefore - freeNow);

    // Kernels, fills and copies of each alias are seen through the others.
    size_t n = 2 * vmm.chunk / sizeof(unsigned);
    unsigned *count = upload(std::vector<unsigned>(1, 0));
    CHECK(cudaMemset(vmm.at(0), 1, 2 * vmm.chunk));
    add<<<(n + 255) / 256, 256>>>(vmm.at(4), n, 5);
    differences<<<(n + 255) / 256, 256>>>(vmm.at(0), vmm.at(4), n, count);
    differences<<<(n / 2 + 255) / 256, 256>>>(vmm.at(8), vmm.at(4), n / 2, count);
    expect(download(count, 1)[0] == 0, "aliases differ");
    expect(download(vmm.at(8), 4)[3] == 0x01010106, "%x", download(vmm.at(8), 4)[3]);
    unsigned word = 77;
    CHECK(cudaMemcpy(vmm.at(8) + 10, &word, 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(vmm.at(4) + 11, vmm.at(0) + 10, 4, cudaMemcpyDeviceToDevice));
    std::vector<unsigned> pair = download(vmm.at(0) + 10, 2);
    expect(pair[0] == 77 && pair[1] == 77, "%u %u", pair[0], pair[1]);

    // Access is asked for, and kept to by copies and fills.
    expect(vmm.access(0) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access %llu", vmm.access(0));
    DRIVER(vmm.allow(4, 2, CU_MEM_ACCESS_FLAGS_PROT_READ));
    expect(vmm.access(4) == CU_MEM_ACCESS_FLAGS_PROT_READ, "access %llu", vmm.access(4));
    expect(cudaMemcpy(vmm.at(4), &word, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue, "a copy wrote");
    expect(cudaMemset(vmm.at(4), 0, 4) != cudaSuccess, "a fill wrote");
    cudaGetLastError();
    expect(download(vmm.at(4) + 10, 1)[0] == 77, "reading is allowed");
    DRIVER(vmm.allow(4, 2, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    expect(cudaMemcpy(&word, vmm.at(4), 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue, "a copy read");
    cudaGetLastError();
    expect(download(vmm.at(0) + 10, 1)[0] == 77, "the other address may be read");
    DRIVER(vmm.allow(4, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    expect(vmm.allow(4, 1, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_ERROR_INVALID_VALUE, "half a mapping");
    expect(vmm.allow(12, 1, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_ERROR_INVALID_VALUE, "nothing is mapped");

    // Handles lead to their properties, and addresses to their handles.
    CUmemAllocationProp found;
    DRIVER(vmm.cuMemGetAllocationPropertiesFromHandle(&found, handle));
    expect(std::memcmp(&found, &vmm.properties, sizeof found) == 0, "other properties");
    CUmemGenericAllocationHandle again;
    DRIVER(vmm.cuMemRetainAllocationHandle(&again, vmm.at(8) + 1));
    expect(again == handle, "another handle");
    DRIVER(vmm.cuMemRelease(again));

    // Released before it is unmapped; unmapping one address leaves the others.
    DRIVER(vmm.cuMemRelease(handle));
    DRIVER(vmm.unmap(0, 2));
    expect(cudaMemcpy(&word, vmm.at(0), 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue, "unmapped memory was read");
    cudaGetLastError();
    add<<<(n + 255) / 256, 256>>>(vmm.at(4), n, 1);
    expect(download(vmm.at(8) + 10, 1)[0] == 78, "%u", download(vmm.at(8) + 10, 1)[0]);
    DRIVER(vmm.unmap(4, 2));
    expect(download(vmm.at(8) + 10, 1)[0] == 78, "the last alias");
    CHECK(cudaMemGetInfo(&freeNow, &total));
    expect(freeBefore - freeNow >= 2 * vmm.chunk, "memory went before its last mapping");
    DRIVER(vmm.unmap(8, 1));
    DRIVER(vmm.cuMemAddressFree(vmm.place, 16 * vmm.chunk));
    CHECK(cudaFree(count));
    CHECK(cudaMemGetInfo(&freeNow, &total));
    expect(freeNow == freeBefore, "%zd bytes are missing", static_cast<ssize_t>(freeBefore - freeNow));
    expect(vmm.cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE, "it is released");
    std::printf("vmm_alias words=%zu\n", n);
    return verdict();
}
