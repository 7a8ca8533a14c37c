// Host memory that kernels use directly: pinned, mapped and registered; and what the runtime says of pointers.
#include "check.h"
#include <atomic>
#include <thread>

__global__ void twice(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}

__global__ void count(int *counter) { atomicAdd(counter, 1); }

__global__ void together(int *counter, volatile int *begun, int times) {
    *begun = 1;
    for (int i = 0; i < times; i++) atomicAdd_system(counter, 1);
}

void type(const char *name, const void *pointer, cudaMemoryType expected) {
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, pointer));
    expect(attributes.type == expected, "%s memory has type %d, expected %d", name, attributes.type, expected);
}

int main() {
    const int n = 5000;
    int *in, *out, *inOnDevice, *outOnDevice;
    CHECK(cudaHostAlloc(&in, n * sizeof(int), cudaHostAllocMapped | cudaHostAllocWriteCombined));
    CHECK(cudaMallocHost(&out, n * sizeof(int)));
    CHECK(cudaHostGetDevicePointer(&inOnDevice, in, 0));
    CHECK(cudaHostGetDevicePointer(&outOnDevice, out, 0));
    for (int i = 0; i < n; i++) {
        in[i] = i * i;
        out[i] = -1;
    }
    twice<<<(n + 255) / 256, 256>>>(inOnDevice, outOnDevice, n);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) expect(out[i] == 2 * i * i, "mapped %d: %d", i, out[i]);

    // With unified addressing the host's own pointer serves as well, and one into the middle of the memory.
    twice<<<8, 64>>>(in + 1000, out, 500);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 500; i++) expect(out[i] == 2 * (i + 1000) * (i + 1000), "by the host's pointer %d: %d", i, out[i]);
    int *counter = out + 100;
    *counter = 5;
    count<<<10, 100>>>(counter);
    CHECK(cudaDeviceSynchronize());
    expect(*counter == 1005, "counter %d", *counter);

    // Atomics of both sides on one word at the same time: none is lost, of ours nor of the kernel's.
    counter[0] = counter[1] = 0;
    auto shared = reinterpret_cast<std::atomic<int> *>(counter);
    together<<<20, 128>>>(counter, counter + 1, 50);
    while (*(volatile int *)(counter + 1) == 0) std::this_thread::yield();
    for (int i = 0; i < 100000; i++) shared->fetch_add(3);
    CHECK(cudaDeviceSynchronize());
    expect(*counter == 20 * 128 * 50 + 300000, "counted together: %d", *counter);

    int *device = blank<int>(n), unknown = 0;
    CHECK(cudaMemcpy(device, in, n * sizeof(int), cudaMemcpyDefault));
    CHECK(cudaMemset(out, 0, n * sizeof(int)));
    CHECK(cudaMemcpy(out, device, n * sizeof(int), cudaMemcpyDefault));
    for (int i = 0; i < n; i++) expect(out[i] == i * i, "copied %d: %d", i, out[i]);
    type("device", device, cudaMemoryTypeDevice);
    type("pinned", out, cudaMemoryTypeHost);
    type("unknown", &unknown, cudaMemoryTypeUnregistered);
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
    std::printf("mapped n=%d\n", n);
    return verdict();
}
