// A graph captured from streams that fork and join, instantiated once and launched many times.
#include "check.h"

__global__ void scale(float *data, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= by;
}

__global__ void add(const float *a, const float *b, float *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

int main() {
    const int n = 2000, launches = 10, blocks = (n + 127) / 128;
    std::vector<float> start(n);
    for (int i = 0; i < n; i++) start[i] = static_cast<float>(i);
    float *a = upload(start), *b = upload(start), *sum = blank<float>(n), *host;
    CHECK(cudaMallocHost(&host, n * sizeof(float)));

    cudaStream_t main, side;
    cudaEvent_t fork, join;
    CHECK(cudaStreamCreate(&main));
    CHECK(cudaStreamCreate(&side));
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(fork, main));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    scale<<<blocks, 128, 0, main>>>(a, n, 2.0f);
    scale<<<blocks, 128, 0, side>>>(b, n, -1.0f);
    CHECK(cudaEventRecord(join, side));
    CHECK(cudaStreamWaitEvent(main, join, 0));
    add<<<blocks, 128, 0, main>>>(a, b, sum, n);
    CHECK(cudaMemcpyAsync(host, sum, n * sizeof(float), cudaMemcpyDeviceToHost, main));
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(main, &graph));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    expect(nodes == 4, "%zu nodes, expected 4", nodes);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));

    // Nothing has run while it was captured.
    std::vector<float> untouched = download(a, n);
    expect(untouched[5] == 5.0f, "a[5] = %g after capture", untouched[5]);
    for (int launch = 1; launch <= launches; launch++) {
        CHECK(cudaGraphLaunch(executable, main));
        CHECK(cudaStreamSynchronize(main));
        float factor = static_cast<float>(1 << launch) + (launch % 2 == 0 ? 1.0f : -1.0f);
        for (int i = 0; i < n; i++)
            expect(host[i] == i * factor, "launch %d, %d: %g, expected %g", launch, i, host[i], i * factor);
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    std::printf("graph nodes=%zu launches=%d\n", nodes, launches);
    return verdict();
}
