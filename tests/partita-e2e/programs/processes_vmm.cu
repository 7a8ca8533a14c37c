// Memory of cuMemCreate in two processes: a file descriptor passes through a socket, each process maps the memory where it likes
// and with the access that it likes, and the memory outlives the handles and mappings of the process that made it.
#include "driver.h"
#include "two_processes.h"

constexpr size_t CHUNK = 2 << 20;
constexpr int COUNT = 2 * CHUNK / sizeof(unsigned);

struct Vmm {
    USE_MEMBER(cuMemAddressReserve);
    USE_MEMBER(cuMemAddressFree);
    USE_MEMBER(cuMemCreate);
    USE_MEMBER(cuMemRelease);
    USE_MEMBER(cuMemMap);
    USE_MEMBER(cuMemUnmap);
    USE_MEMBER(cuMemSetAccess);
    USE_MEMBER(cuMemExportToShareableHandle);
    USE_MEMBER(cuMemImportFromShareableHandle);
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};

    unsigned *map(CUmemGenericAllocationHandle handle) const {
        CUdeviceptr place;
        CUmemAccessDesc access = {here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        DRIVER(cuMemAddressReserve(&place, 2 * CHUNK, 0, 0, 0));
        DRIVER(cuMemMap(place, 2 * CHUNK, 0, handle, 0));
        DRIVER(cuMemSetAccess(place, 2 * CHUNK, &access, 1));
        return reinterpret_cast<unsigned *>(place);
    }
    void unmap(unsigned *at) const {
        DRIVER(cuMemUnmap(CUdeviceptr(at), 2 * CHUNK));
        DRIVER(cuMemAddressFree(CUdeviceptr(at), 2 * CHUNK));
    }
    CUresult import(CUmemGenericAllocationHandle *handle, int file) const {
        return cuMemImportFromShareableHandle(handle, reinterpret_cast<void *>(uintptr_t(file)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    }
};

int child() {
    CHECK(cudaFree(nullptr));
    Vmm vmm;
    int file = receive_file();
    CUmemGenericAllocationHandle handle, again, none;
    DRIVER(vmm.import(&handle, file));
    DRIVER(vmm.import(&again, file));
    int pipes[2];
    if (pipe(pipes) != 0) return 2;
    expect(vmm.import(&none, pipes[0]) == CUDA_ERROR_INVALID_VALUE, "a pipe was imported");
    expect(vmm.import(&none, 1000000) == CUDA_ERROR_INVALID_VALUE, "no file was imported");
    close(file);
    unsigned *data = vmm.map(handle), *second = vmm.map(again);
    DRIVER(vmm.cuMemRelease(handle));
    DRIVER(vmm.cuMemRelease(again));
    triple<<<COUNT / 256, 256>>>(data, COUNT);
    CHECK(cudaDeviceSynchronize());
    vmm.unmap(data);
    expect_all(second, COUNT, 3, 1, "mapped a second time");
    say('d');
    hear();
    expect_all(second, COUNT, 9, 4, "after the owner's end");
    vmm.unmap(second);
    return failures != 0;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        line = std::atoi(argv[1]);
        return child();
    }
    pid_t process = start_child(argv[0]);

    CHECK(cudaFree(nullptr));
    Vmm vmm;
    size_t free_at_first, free_now, total;
    CHECK(cudaMemGetInfo(&free_at_first, &total));
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = vmm.here;
    CUmemGenericAllocationHandle handle, plain, own;
    DRIVER(vmm.cuMemCreate(&plain, CHUNK, &properties, 0));
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    DRIVER(vmm.cuMemCreate(&handle, 2 * CHUNK, &properties, 0));
    int file = -1;
    auto fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    expect(vmm.cuMemExportToShareableHandle(&file, plain, fd, 0) == CUDA_ERROR_INVALID_VALUE, "what has no handles was exported");
    DRIVER(vmm.cuMemRelease(plain));
    // Handed out before it is mapped anywhere.
    DRIVER(vmm.cuMemExportToShareableHandle(&file, handle, fd, 0));
    unsigned *data = vmm.map(handle);
    DRIVER(vmm.import(&own, file));
    expect(own == handle, "its own memory has another handle");
    DRIVER(vmm.cuMemRelease(own));
    count<<<COUNT / 256, 256>>>(data, COUNT);
    CHECK(cudaDeviceSynchronize());
    send_file(file);
    close(file);
    hear();
    expect_all(data, COUNT, 3, 1, "the child's work");
    triple<<<COUNT / 256, 256>>>(data, COUNT);
    CHECK(cudaDeviceSynchronize());
    vmm.unmap(data);
    DRIVER(vmm.cuMemRelease(handle));
    say('e');
    int status = 1;
    waitpid(process, &status, 0);
    expect(status == 0, "the child ended with %d", status);
    CHECK(cudaMemGetInfo(&free_now, &total));
    expect(free_now == free_at_first, "%zu bytes free at first, %zu at the end", free_at_first, free_now);
    std::printf("processes_vmm by files\n");
    return verdict();
}
