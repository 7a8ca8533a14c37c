// Memory of the program's own that it registers, so that kernels reach it: large and small pieces of the heap, pages at a page's
// border, variables; what both sides see of each other; and what cannot be lent.
#include "check.h"
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

__global__ void twice(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i] + out[i];
}

// Answers what the program writes, until it writes a negative number.
__global__ void converse(volatile int *said, volatile int *answer) {
    int last = 0;
    while (last >= 0) {
        int now = *said;
        if (now == last) continue;
        *answer = now + 1000;
        __threadfence_system();
        last = now;
    }
}

static int global[300];

template <class T>
T *lent(T *host) {
    T *device;
    CHECK(cudaHostGetDevicePointer(&device, host, 0));
    return device;
}

// Registers, has a kernel read and write it, and takes it back, so often that pages that are not given back would be missed.
void round(int *data, int n, const char *what) {
    int *expected = new int[n];
    for (int i = 0; i < n; i++) expected[i] = data[i] = i;
    for (int turn = 0; turn < 3; turn++) {
        CHECK(cudaHostRegister(data, n * sizeof(int), turn == 1 ? cudaHostRegisterMapped : cudaHostRegisterDefault));
        int *device = lent(data);
        for (int i = 0; i < n; i++) expect(data[i] == expected[i], "%s %d: %d after it was lent", what, i, data[i]);
        twice<<<(n + 255) / 256, 256>>>(device, device, n);
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < n; i++) {
            expected[i] *= 3;
            expect(data[i] == expected[i], "%s %d: %d after the kernel", what, i, data[i]);
        }
        data[0] = expected[0] = 7 + turn;
        twice<<<1, 64>>>(device, device, 1);
        CHECK(cudaHostUnregister(data));
        expected[0] *= 3;
        for (int i = 0; i < n; i++) expect(data[i] == expected[i], "%s %d: %d after it came back", what, i, data[i]);
    }
    delete[] expected;
}

int main() {
    CHECK(cudaSetDeviceFlags(cudaDeviceMapHost));
    CHECK(cudaFree(nullptr));
    int *large = static_cast<int *>(std::malloc(1 << 18)), *small = static_cast<int *>(std::malloc(2000));
    void *aligned;
    if (posix_memalign(&aligned, 4096, 12288) != 0) return 1;
    round(large, 1 << 16, "large");
    round(static_cast<int *>(aligned), 3072, "aligned");
    // Between other pieces of the heap, which must not notice.
    char *before = static_cast<char *>(std::malloc(3000)), *after = static_cast<char *>(std::malloc(3000));
    std::memset(before, 0x5a, 3000);
    std::memset(after, 0x7b, 3000);
    round(small, 500, "small");
    for (int i = 0; i < 3000; i++) expect(before[i] == 0x5a && after[i] == 0x7b, "the heap at %d", i);
    round(global, 300, "variables");

    // Copies and fills by either address; what pointers are.
    CHECK(cudaHostRegister(large, 1 << 18, cudaHostRegisterMapped));
    int *device = lent(large), *memory = blank<int>(1000);
    expect(lent(large + 500) == device + 500, "the middle has another address");
    for (int i = 0; i < 1000; i++) large[i] = 3 * i;
    CHECK(cudaMemcpy(memory, device, 4000, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemset(device, 0, 2000));
    for (int i = 0; i < 1000; i++) expect(large[i] == (i < 500 ? 0 : 3 * i), "filled %d: %d", i, large[i]);
    CHECK(cudaMemcpyAsync(large, memory, 4000, cudaMemcpyDeviceToHost, nullptr));
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 1000; i++) expect(large[i] == 3 * i, "copied %d: %d", i, large[i]);
    cudaPointerAttributes attributes;
    for (int *pointer : {large + 100, device + 100}) {
        CHECK(cudaPointerGetAttributes(&attributes, pointer));
        expect(attributes.type == cudaMemoryTypeHost, "type %d", attributes.type);
        expect(attributes.hostPointer == large + 100 && attributes.devicePointer == device + 100, "pointers");
    }

    // Both sides while the kernel runs.
    large[0] = large[1000] = 0;
    converse<<<1, 1>>>(device, device + 1000);
    auto said = reinterpret_cast<std::atomic<int> *>(large), answer = said + 1000;
    for (int i = 1; i < 20; i++) {
        *said = i;
        while (*answer != i + 1000) std::this_thread::yield();
    }
    *said = -1;
    CHECK(cudaDeviceSynchronize());
    expect(*answer == 999, "the last answer is %d", answer->load());
    expect(cudaHostRegister(large + 10, 100, 0) == cudaErrorHostMemoryAlreadyRegistered, "registered twice");
    cudaGetLastError();
    CHECK(cudaHostUnregister(large));
    expect(cudaHostUnregister(large) == cudaErrorHostMemoryNotRegistered, "unregistered twice");
    cudaGetLastError();

    // What is shared with another process stays so: copies do, kernels do not.
    int *shared = static_cast<int *>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    CHECK(cudaHostRegister(shared, 8192, cudaHostRegisterDefault));
    expect(cudaHostGetDevicePointer(&device, shared, 0) == cudaErrorNotSupported, "shared memory was lent");
    cudaGetLastError();
    if (fork() == 0) {
        shared[1] = 17;
        _exit(0);
    }
    wait(nullptr);
    CHECK(cudaMemcpy(memory, shared, 8, cudaMemcpyHostToDevice));
    expect(download(memory, 2)[1] == 17, "the child's word");
    CHECK(cudaHostUnregister(shared));
    int local[100];
    CHECK(cudaHostRegister(local, sizeof local, cudaHostRegisterDefault));
    expect(cudaHostGetDevicePointer(&device, local, 0) == cudaErrorNotSupported, "the stack was lent");
    cudaGetLastError();
    CHECK(cudaHostUnregister(local));
    std::free(large);
    std::free(small);
    std::free(aligned);
    std::printf("registered pieces=4\n");
    return verdict();
}
