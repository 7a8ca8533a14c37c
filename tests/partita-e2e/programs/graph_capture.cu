// Capture: many branches across streams, memory in stream order, host functions, a library that asks whether it is captured,
// updates by capturing again, and the errors of what cannot be captured.
#include "check.h"

__global__ void step(int *data, int n, int by, int plus) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * by + plus;
}

__global__ void gather(int *sum, int *const *parts, int count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int total = 0;
    for (int part = 0; part < count; part++) total += parts[part][i];
    sum[i] = total;
}

const int n = 1500, blocks = (n + 127) / 128, branches = 20, depth = 4;

// What a library does that may be called while its caller captures.
bool isCaptured(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t *before = nullptr;
    size_t count = 0;
    CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &before, nullptr, &count));
    return status == cudaStreamCaptureStatusActive && id != 0 && graph != nullptr;
}

void CUDART_CB countUp(void *data) { ++*static_cast<int *>(data); }

int main() {
    cudaStream_t main, side[branches];
    cudaEvent_t fork, joined[branches];
    CHECK(cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    int *parts[branches], *sum = blank<int>(n), calls = 0;
    for (int branch = 0; branch < branches; branch++) {
        CHECK(cudaStreamCreateWithFlags(&side[branch], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&joined[branch], cudaEventDisableTiming));
        CHECK(cudaMalloc(&parts[branch], n * sizeof(int)));
    }
    int **list = upload(std::vector<int *>(parts, parts + branches));

    // Every branch: part = 1, then `depth` steps; all join for the sum, a temporary doubles it.
    auto capture = [&](int plus) {
        CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
        expect(isCaptured(main) && !isCaptured(side[0]), "capture info");
        CHECK(cudaEventRecord(fork, main));
        for (int branch = 0; branch < branches; branch++) {
            CHECK(cudaStreamWaitEvent(side[branch], fork, 0));
            expect(isCaptured(side[branch]), "branch %d is not captured", branch);
            CHECK(cudaMemsetAsync(parts[branch], 0, n * sizeof(int), side[branch]));
            for (int round = 0; round < depth; round++)
                step<<<blocks, 128, 0, side[branch]>>>(parts[branch], n, 2, branch + plus);
            CHECK(cudaEventRecord(joined[branch], side[branch]));
        }
        for (int branch = 0; branch < branches; branch++) CHECK(cudaStreamWaitEvent(main, joined[branch], 0));
        gather<<<blocks, 128, 0, main>>>(sum, list, branches, n);
        int *temporary;
        CHECK(cudaMallocAsync(&temporary, n * sizeof(int), main));
        CHECK(cudaMemcpyAsync(temporary, sum, n * sizeof(int), cudaMemcpyDeviceToDevice, main));
        step<<<blocks, 128, 0, main>>>(temporary, n, 2, 0);
        CHECK(cudaMemcpyAsync(sum, temporary, n * sizeof(int), cudaMemcpyDeviceToDevice, main));
        CHECK(cudaFreeAsync(temporary, main));
        CHECK(cudaLaunchHostFunc(main, countUp, &calls));
        cudaGraph_t graph;
        CHECK(cudaStreamEndCapture(main, &graph));
        return graph;
    };
    auto expected = [&](int plus) {
        int total = 0;
        for (int branch = 0; branch < branches; branch++) total += ((1 << depth) - 1) * (branch + plus);
        return 2 * total;
    };
    auto check = [&](const char *what, int plus) {
        std::vector<int> found = download(sum, n);
        for (int i = 0; i < n; i++) expect(found[i] == expected(plus), "%s, %d: %d, expected %d", what, i, found[i], expected(plus));
    };
    cudaGraph_t graph = capture(1), changed = capture(9);
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    expect(nodes == branches * (depth + 1) + 7, "%zu nodes", nodes);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    // Launches of one executable follow one another in whatever streams they are.
    CHECK(cudaGraphLaunch(executable, main));
    CHECK(cudaGraphLaunch(executable, side[3]));
    CHECK(cudaGraphLaunch(executable, side[7]));
    CHECK(cudaDeviceSynchronize());
    check("first", 1);
    expect(calls == 3, "%d calls", calls);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, changed, &info));
    CHECK(cudaGraphLaunch(executable, nullptr));
    CHECK(cudaDeviceSynchronize());
    check("updated", 9);

    // A launch that is itself captured becomes a graph inside.
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeRelaxed));
    CHECK(cudaGraphLaunch(executable, main));
    step<<<blocks, 128, 0, main>>>(sum, n, 1, 100);
    cudaGraph_t outer;
    CHECK(cudaStreamEndCapture(main, &outer));
    cudaGraphExec_t outerExecutable;
    CHECK(cudaGraphInstantiate(&outerExecutable, outer, 0));
    CHECK(cudaGraphLaunch(outerExecutable, main));
    CHECK(cudaStreamSynchronize(main));
    std::vector<int> found = download(sum, n);
    expect(found[17] == expected(9) + 100, "inside: %d, expected %d", found[17], expected(9) + 100);

    // What cannot be captured invalidates the capture; nothing else suffers.
    auto fails = [&](const char *what, cudaError_t error, cudaError_t wanted, cudaError_t ending) {
        expect(error == wanted, "%s: %s, expected %s", what, cudaGetErrorName(error), cudaGetErrorName(wanted));
        cudaGraph_t nothing = nullptr;
        cudaError_t end = cudaStreamEndCapture(main, &nothing);
        expect(end == ending, "%s ends with %s, expected %s", what, cudaGetErrorName(end), cudaGetErrorName(ending));
        cudaGetLastError();
    };
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
    fails("waiting", cudaStreamSynchronize(main), cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
    fails("asking", cudaStreamQuery(main), cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated);
    CHECK(cudaEventRecord(joined[0], side[0]));
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
    fails("work outside", cudaStreamWaitEvent(main, joined[0], 0), cudaErrorStreamCaptureIsolation, cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(fork, main));
    CHECK(cudaStreamWaitEvent(side[0], fork, 0));
    step<<<blocks, 128, 0, side[0]>>>(parts[0], n, 2, 2);
    expect(cudaEventSynchronize(fork) == cudaErrorCapturedEvent, "a captured event was waited for");
    fails("a loose end", cudaSuccess, cudaSuccess, cudaErrorStreamCaptureUnjoined);
    expect(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported, "legacy stream");
    cudaGetLastError();
    CHECK(cudaGraphLaunch(executable, main));
    CHECK(cudaStreamSynchronize(main));
    check("after errors", 9);
    for (cudaGraphExec_t one : {executable, outerExecutable}) CHECK(cudaGraphExecDestroy(one));
    for (cudaGraph_t one : {graph, changed, outer}) CHECK(cudaGraphDestroy(one));
    std::printf("graph_capture branches=%d nodes=%zu\n", branches, nodes);
    return verdict();
}
