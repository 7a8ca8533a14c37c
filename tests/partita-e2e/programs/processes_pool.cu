// Blocks of a memory pool in two processes: a file names the pool, data name each block, and a process frees what it has imported
// in stream order.
#include "two_processes.h"

constexpr int COUNT = 100000;

int blocks() { return (COUNT + 255) / 256; }

using Block = cudaMemPoolPtrExportData;

cudaError_t import_pool(cudaMemPool_t *pool, int file) {
    return cudaMemPoolImportFromShareableHandle(pool, reinterpret_cast<void *>(uintptr_t(file)),
                                                cudaMemHandleTypePosixFileDescriptor, 0);
}

int child() {
    CHECK(cudaFree(nullptr));
    int file = receive_file(), pipes[2];
    if (pipe(pipes) != 0) return 2;
    auto first = hear<Block>(), second = hear<Block>();
    cudaMemPool_t pool, none;
    CHECK(import_pool(&pool, file));
    expect(import_pool(&none, pipes[0]) == cudaErrorInvalidValue, "a pipe was imported");
    cudaGetLastError();
    close(file);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *own, *data, *other;
    expect(cudaMallocFromPoolAsync(&own, 1024, pool, stream) == cudaErrorInvalidValue, "memory of another process's pool");
    cudaGetLastError();
    Block wrong = first;
    wrong.reserved[30] ^= 1;
    expect(cudaMemPoolImportPointer(&own, pool, &wrong) == cudaErrorInvalidValue, "a block of another pool");
    cudaGetLastError();
    CHECK(cudaMemPoolImportPointer(&data, pool, &first));
    CHECK(cudaMemPoolImportPointer(&other, pool, &second));
    for (void *block : {data, other}) {
        triple<<<blocks(), 256, 0, stream>>>(static_cast<unsigned *>(block), COUNT);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaFreeAsync(data, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(other));
    expect(cudaFree(other) == cudaErrorInvalidValue, "freed twice");
    cudaGetLastError();
    CHECK(cudaMemPoolDestroy(pool));
    say('d');
    return failures != 0;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        line = std::atoi(argv[1]);
        return child();
    }
    pid_t process = start_child(argv[0]);
    CHECK(cudaFree(nullptr));
    int kinds = 0;
    CHECK(cudaDeviceGetAttribute(&kinds, cudaDevAttrMemoryPoolSupportedHandleTypes, 0));
    expect(kinds & cudaMemHandleTypePosixFileDescriptor, "handle types %d", kinds);
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t plain, pool;
    CHECK(cudaMemPoolCreate(&plain, &properties));
    properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    CHECK(cudaMemPoolCreate(&pool, &properties));
    int file = -1;
    auto kind = cudaMemHandleTypePosixFileDescriptor;
    expect(cudaMemPoolExportToShareableHandle(&file, plain, kind, 0) == cudaErrorInvalidValue, "a plain pool was exported");
    CHECK(cudaMemPoolExportToShareableHandle(&file, pool, kind, 0));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned *first, *second, *own;
    CHECK(cudaMallocFromPoolAsync(&first, COUNT * sizeof(unsigned), pool, stream));
    CHECK(cudaMallocFromPoolAsync(&second, COUNT * sizeof(unsigned), pool, stream));
    CHECK(cudaMallocFromPoolAsync(&own, COUNT * sizeof(unsigned), plain, stream));
    Block data;
    expect(cudaMemPoolExportPointer(&data, own) == cudaErrorInvalidValue, "memory of a plain pool was exported");
    cudaGetLastError();
    for (unsigned *block : {first, second}) {
        count<<<blocks(), 256, 0, stream>>>(block, COUNT);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaStreamSynchronize(stream));
    send_file(file);
    close(file);
    for (unsigned *block : {first, second}) {
        CHECK(cudaMemPoolExportPointer(&data, block));
        say(data);
    }
    hear();
    expect_all(first, COUNT, 3, 1, "the first block");
    expect_all(second, COUNT, 3, 1, "the second block");
    for (unsigned *block : {first, second, own}) CHECK(cudaFreeAsync(block, stream));
    int status = 1;
    waitpid(process, &status, 0);
    expect(status == 0, "the child ended with %d", status);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolDestroy(pool));
    CHECK(cudaMemPoolDestroy(plain));
    std::printf("processes_pool by files\n");
    return verdict();
}
