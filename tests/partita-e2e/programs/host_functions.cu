// Functions of the host in streams: they are called when earlier work is done, later work waits for them, and neither the
// thread that enqueues them nor other streams do.
#include <atomic>
#include <thread>

#include "check.h"

__global__ void addTo(int *data, int n, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += value;
}

static std::atomic<bool> mayGoOn{false};
static std::atomic<int> called{0}, wrongStatus{0}, outOfOrder{0};

struct Step {
    int *host, n, before, add;
    bool right;
};

static void change(void *argument) {
    Step *step = static_cast<Step *>(argument);
    step->right = true;
    for (int i = 0; i < step->n; i++) {
        step->right &= step->host[i] == step->before;
        step->host[i] += step->add;
    }
}

static void waitForMain(void *) {
    while (!mayGoOn) std::this_thread::yield();
}

static void inOrder(void *argument) {
    if (called++ != static_cast<int>(reinterpret_cast<intptr_t>(argument))) outOfOrder++;
}

static void CUDART_CB callback(cudaStream_t, cudaError_t status, void *argument) {
    if (status != cudaSuccess) wrongStatus++;
    static_cast<std::atomic<int> *>(argument)->fetch_add(1);
}

int main() {
    const int n = 4096, bytes = n * sizeof(int), blocks = n / 256;
    int *host, *device, *other;
    CHECK(cudaMallocHost(&host, bytes));
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMalloc(&other, bytes));
    cudaStream_t stream, side;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));

    printf("host_functions in 2 streams\n");

    // The host's part of a chain: what it writes is what the device copies next.
    CHECK(cudaMemsetAsync(device, 0, bytes, stream));
    Step steps[5];
    for (int s = 0, value = 0; s < 5; s++) {
        addTo<<<blocks, 256, 0, stream>>>(device, n, 3);
        CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
        steps[s] = {host, n, value + 3, 10 * s, false};
        value += 3 + 10 * s;
        CHECK(cudaLaunchHostFunc(stream, change, &steps[s]));
        CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int s = 0; s < 5; s++) expect(steps[s].right, "function %d saw other values", s);
    for (int value : download(device, n)) expect(value == 5 * 3 + 100, "%d at the end", value);

    // A function that waits for this very thread, which goes on; another stream does, too.
    CHECK(cudaLaunchHostFunc(stream, waitForMain, nullptr));
    addTo<<<blocks, 256, 0, stream>>>(device, n, 1);
    expect(cudaStreamQuery(stream) == cudaErrorNotReady, "a stream is done before its function is");
    CHECK(cudaMemsetAsync(other, 0, bytes, side));
    addTo<<<blocks, 256, 0, side>>>(other, n, 7);
    CHECK(cudaStreamSynchronize(side));
    expect(cudaStreamQuery(stream) == cudaErrorNotReady, "a stream is done before its function is");
    mayGoOn = true;
    CHECK(cudaStreamSynchronize(stream));
    for (int value : download(device, n)) expect(value == 5 * 3 + 101, "%d behind the function", value);
    for (int value : download(other, n)) expect(value == 7, "%d in the other stream", value);

    // Many of them, in order, and callbacks in two streams.
    for (intptr_t i = 0; i < 500; i++) CHECK(cudaLaunchHostFunc(stream, inOrder, reinterpret_cast<void *>(i)));
    CHECK(cudaStreamSynchronize(stream));
    expect(called == 500 && outOfOrder == 0, "%d called, %d out of order", called.load(), outOfOrder.load());
    std::atomic<int> callbacks{0};
    for (int i = 0; i < 100; i++) CHECK(cudaStreamAddCallback(i % 2 ? side : stream, callback, &callbacks, 0));
    CHECK(cudaDeviceSynchronize());
    expect(callbacks == 100 && wrongStatus == 0, "%d callbacks, %d with an error", callbacks.load(), wrongStatus.load());
    return verdict();
}
