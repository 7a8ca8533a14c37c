// Memory and events of two processes: handles pass through a socket, each process opens what the other exported, kernels of both
// work in one allocation, events order them, and memory outlives the process that made it.
#include "driver.h"
#include "two_processes.h"
#include <csignal>

constexpr int COUNT = 300000;

// Takes its time before it adds.
__global__ void add_late(unsigned *data, int n, unsigned by, int turns) {
    unsigned value = by;
    for (int turn = 0; turn < turns; turn++) value = value * 1664525u + (value >> 7) + 1013904223u;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += by + (value == 0x12345678u && turns < 0);
}

struct Handles {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t ready, done;
};

int blocks() { return (COUNT + 255) / 256; }

cudaEvent_t shared_event() {
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    return event;
}

cudaError_t open_memory(void **opened, cudaIpcMemHandle_t handle) {
    return cudaIpcOpenMemHandle(opened, handle, cudaIpcMemLazyEnablePeerAccess);
}

// Opens what the parent exported, works on it, and exports memory of its own.
int child() {
    auto handles = hear<Handles>();
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *opened, *again;
    cudaEvent_t ready, done;
    CHECK(open_memory(&opened, handles.memory));
    CHECK(open_memory(&again, handles.memory));
    expect(opened == again, "opened twice: %p and %p", opened, again);
    CHECK(cudaIpcCloseMemHandle(again));
    CHECK(cudaIpcOpenEventHandle(&ready, handles.ready));
    CHECK(cudaIpcOpenEventHandle(&done, handles.done));
    auto *data = static_cast<unsigned *>(opened);
    CHECK(cudaStreamWaitEvent(stream, ready, 0));
    triple<<<blocks(), 256, 0, stream>>>(data, COUNT);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(done, stream));
    say('d');

    // What the address is.
    USE(cuMemGetAddressRange);
    CUdeviceptr base;
    size_t bytes;
    DRIVER(cuMemGetAddressRange(&base, &bytes, CUdeviceptr(data + 1000)));
    expect(base == CUdeviceptr(data) && bytes == COUNT * sizeof(unsigned), "a range of %zu bytes", bytes);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, data + 5));
    expect(attributes.type == cudaMemoryTypeDevice, "a pointer of type %d", attributes.type);
    expect(cudaFree(data) == cudaErrorInvalidValue, "it could be freed");
    expect(cudaEventElapsedTime(nullptr, ready, done) != cudaSuccess, "it had a time");
    cudaIpcMemHandle_t wrong = handles.memory;
    wrong.reserved[12] ^= 1;
    expect(open_memory(&again, wrong) == cudaErrorInvalidValue, "a wrong handle opened");
    expect(cudaIpcOpenMemHandle(&again, handles.memory, 0) == cudaErrorInvalidValue, "opened without flags");
    cudaGetLastError();

    // The parent has freed it, and has other memory.
    hear();
    expect_all(data, COUNT, 3, 4, "after the owner's free");
    CHECK(cudaMemset(data, 0, COUNT * sizeof(unsigned)));
    CHECK(cudaIpcCloseMemHandle(data));
    expect(cudaIpcCloseMemHandle(data) == cudaErrorInvalidValue, "closed twice");
    cudaGetLastError();
    expect(open_memory(&again, handles.memory) == cudaErrorInvalidValue, "freed memory opened");
    cudaGetLastError();

    // Memory and an event that the child's end leaves behind.
    Handles own;
    unsigned *mine;
    CHECK(cudaMalloc(&mine, COUNT * sizeof(unsigned)));
    count<<<blocks(), 256>>>(mine, COUNT);
    CHECK(cudaDeviceSynchronize());
    cudaEvent_t never = shared_event();
    CHECK(cudaIpcGetMemHandle(&own.memory, mine));
    CHECK(cudaIpcGetEventHandle(&own.done, never));
    own.ready = own.done;
    say(failures);
    add_late<<<1, 1, 0, stream>>>(mine, 0, 1, 1 << 24);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(never, stream));
    say(own);
    pause();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        line = std::atoi(argv[1]);
        return child();
    }
    pid_t process = start_child(argv[0]);

    // Not the first in its page.
    unsigned *before = blank<unsigned>(77), *data;
    size_t bytes = COUNT * sizeof(unsigned), free_at_first, free_now, total;
    CHECK(cudaMemGetInfo(&free_at_first, &total));
    CHECK(cudaMalloc(&data, bytes));
    unsigned *behind = blank<unsigned>(99);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t ready = shared_event(), done = shared_event(), plain;
    CHECK(cudaEventCreate(&plain));
    expect(cudaEventCreateWithFlags(&plain, cudaEventInterprocess) == cudaErrorInvalidValue, "a shared event with time");
    Handles handles, inside;
    CHECK(cudaIpcGetMemHandle(&handles.memory, data));
    CHECK(cudaIpcGetMemHandle(&inside.memory, data + 4321));
    expect(std::memcmp(&handles.memory, &inside.memory, sizeof(handles.memory)) == 0, "a handle is the allocation's");
    CHECK(cudaIpcGetEventHandle(&handles.ready, ready));
    CHECK(cudaIpcGetEventHandle(&handles.done, done));
    expect(cudaIpcGetEventHandle(&inside.ready, plain) != cudaSuccess, "the handle of a plain event");
    expect(cudaIpcGetMemHandle(&inside.memory, &free_now) != cudaSuccess, "the handle of host memory");
    void *own;
    expect(open_memory(&own, handles.memory) == cudaErrorDeviceUninitialized, "opened its own");
    cudaGetLastError();
    CHECK(cudaEventQuery(done));

    // Three kernels of two processes, in order.
    count<<<blocks(), 256, 0, stream>>>(data, COUNT);
    add_late<<<blocks(), 256, 0, stream>>>(data, COUNT, 1, 2000);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(ready, stream));
    say(handles);
    hear();
    CHECK(cudaStreamWaitEvent(stream, done, 0));
    std::vector<unsigned> host(COUNT);
    CHECK(cudaMemcpyAsync(host.data(), data, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < COUNT; i++)
        if (!expect(host[i] == unsigned(i + 1) * 3 + 1, "%u at %d", host[i], i)) break;
    CHECK(cudaEventQuery(done));
    CHECK(cudaEventSynchronize(done));

    // The child keeps the memory that the parent frees.
    CHECK(cudaFree(data));
    unsigned *next = blank<unsigned>(COUNT);
    say('f');
    int failed = hear<int>();
    expect(failed == 0, "%d comparisons of the child failed", failed);
    auto rest = download(next, COUNT);
    for (unsigned value : rest)
        if (!expect(value == ~0u, "the child's memory is the parent's: %#x", value)) break;
    CHECK(cudaFree(next));
    CHECK(cudaFree(behind));

    // The parent keeps memory of the child, which is killed while its kernel runs.
    auto theirs = hear<Handles>();
    cudaEvent_t never;
    CHECK(open_memory(&own, theirs.memory));
    CHECK(cudaIpcOpenEventHandle(&never, theirs.done));
    expect(cudaEventQuery(never) == cudaErrorNotReady, "a kernel that takes long has ended");
    CHECK(cudaStreamWaitEvent(stream, never, 0));
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    CHECK(cudaEventSynchronize(never));
    CHECK(cudaStreamSynchronize(stream));
    auto *data_of_child = static_cast<unsigned *>(own);
    triple<<<blocks(), 256, 0, stream>>>(data_of_child, COUNT);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    expect_all(data_of_child, COUNT, 3, 1, "memory of a dead process");
    CHECK(cudaIpcCloseMemHandle(own));
    CHECK(cudaMemGetInfo(&free_now, &total));
    expect(free_now == free_at_first, "%zu bytes free at first, %zu at the end", free_at_first, free_now);
    CHECK(cudaFree(before));
    std::printf("processes of one user\n");
    return verdict();
}
