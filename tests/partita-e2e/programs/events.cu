// Streams and events: work in different streams, waits across them, queries, elapsed time, callbacks, and copies that
// overlap with kernels.
#include <atomic>

#include "check.h"

__global__ void addTo(int *data, int n, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += value;
}

__global__ void twice(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}

static std::atomic<int> called{0};

int main() {
    const int n = 4096, bytes = n * sizeof(int), blocks = n / 256, streamsCount = 4;
    int *host;
    CHECK(cudaMallocHost(&host, streamsCount * bytes));
    int *in[streamsCount], *out[streamsCount];
    cudaStream_t streams[streamsCount];
    for (int s = 0; s < streamsCount; s++) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CHECK(cudaMalloc(&in[s], bytes));
        CHECK(cudaMalloc(&out[s], bytes));
        for (int i = 0; i < n; i++) host[s * n + i] = s * 1000 + i;
    }

    // Each stream by itself: copy, kernels, copy back.
    for (int s = 0; s < streamsCount; s++) {
        int *part = host + s * n;
        CHECK(cudaMemcpyAsync(in[s], part, bytes, cudaMemcpyHostToDevice, streams[s]));
        for (int k = 0; k < 5; k++) addTo<<<blocks, 256, 0, streams[s]>>>(in[s], n, k);
        twice<<<blocks, 256, 0, streams[s]>>>(in[s], out[s], n);
        CHECK(cudaMemcpyAsync(part, out[s], bytes, cudaMemcpyDeviceToHost, streams[s]));
        CHECK(cudaLaunchHostFunc(streams[s], [](void *) { called++; }, nullptr));
    }
    for (int s = 0; s < streamsCount; s++) CHECK(cudaStreamSynchronize(streams[s]));
    expect(called == streamsCount, "%d host functions were called", called.load());
    for (int s = 0; s < streamsCount; s++)
        for (int i = 0; i < n; i++)
            expect(host[s * n + i] == 2 * (s * 1000 + i + 10), "stream %d, %d: %d", s, i, host[s * n + i]);

    // A chain that goes round the streams: each waits for the event of the one before.
    cudaEvent_t begin, end, links[3 * streamsCount];
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaMemset(in[0], 0, bytes));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventRecord(begin, streams[0]));
    for (int link = 0; link < 3 * streamsCount; link++) {
        cudaStream_t stream = streams[link % streamsCount];
        if (link > 0) CHECK(cudaStreamWaitEvent(stream, links[link - 1], 0));
        twice<<<blocks, 256, 0, stream>>>(in[link % 2], in[1 - link % 2], n);
        addTo<<<blocks, 256, 0, stream>>>(in[1 - link % 2], n, 1);
        CHECK(cudaEventCreateWithFlags(&links[link], cudaEventDisableTiming));
        CHECK(cudaEventRecord(links[link], stream));
    }
    CHECK(cudaEventRecord(end, streams[3]));
    CHECK(cudaEventSynchronize(end));
    expect(cudaEventQuery(end) == cudaSuccess, "the event is not complete after waiting for it");
    expect(cudaStreamQuery(streams[3]) == cudaSuccess, "the stream is not idle");
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    expect(milliseconds > 0 && milliseconds < 10000, "elapsed %g ms", milliseconds);
    std::vector<int> found = download(in[0], n);
    for (int i = 0; i < n; i++) expect(found[i] == 4095, "chain, %d: %d, expected 4095", i, found[i]);

    // An event that nobody has recorded is complete; timing one that has none is an error that does not stick.
    cudaEvent_t fresh;
    CHECK(cudaEventCreate(&fresh));
    expect(cudaEventQuery(fresh) == cudaSuccess, "a fresh event");
    cudaError_t refused = cudaEventElapsedTime(&milliseconds, links[0], end);
    expect(refused == cudaErrorInvalidResourceHandle, "elapsed without timing: %s", cudaGetErrorName(refused));
    cudaGetLastError();
    int least, greatest;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    expect(greatest <= least, "priorities from %d to %d", least, greatest);
    for (int s = 0; s < streamsCount; s++) CHECK(cudaStreamDestroy(streams[s]));
    for (cudaEvent_t link : links) CHECK(cudaEventDestroy(link));
    CHECK(cudaFreeHost(host));
    CHECK(cudaDeviceSynchronize());
    std::printf("events streams=%d chain=%d\n", streamsCount, 3 * streamsCount);
    return verdict();
}
