// Graphs built node by node: every kind of node, branches, clones, graphs inside graphs, changed parameters, updates,
// and what the getters say.
#include "check.h"
#include <cuda.h>

__global__ void scale(int *data, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= by;
}

__global__ void addTo(int *to, const int *from, int n, int bias) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] += from[i] + bias;
}

const int n = 3000, blocks = (n + 127) / 128;

struct Seen {
    const int *host;
    int calls, last;
};

void CUDART_CB look(void *data) {
    Seen *seen = static_cast<Seen *>(data);
    seen->calls++;
    seen->last = seen->host[10];
}

cudaKernelNodeParams kernelParams(void *function, void **arguments) {
    cudaKernelNodeParams params = {};
    params.func = function;
    params.gridDim = dim3(blocks);
    params.blockDim = dim3(128);
    params.kernelParams = arguments;
    return params;
}

int main() {
    int *a = blank<int>(n), *b = blank<int>(n), *host;
    CHECK(cudaMallocHost(&host, n * sizeof(int)));
    std::vector<int> source(n);
    for (int i = 0; i < n; i++) source[i] = i;
    Seen seen = {host, 0, 0};

    // source -> a, a *= 3; beside it b = 0x01010101; then b += a + 5, b -> host, look at it.
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t copyIn, timesThree, clear, sum, copyOut, call, end;
    CHECK(cudaGraphAddMemcpyNode1D(&copyIn, graph, nullptr, 0, a, source.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    int factor = 3, count = n, bias = 5;
    void *scaleArguments[] = {&a, &count, &factor};
    cudaKernelNodeParams scaleParams = kernelParams((void *)scale, scaleArguments);
    CHECK(cudaGraphAddKernelNode(&timesThree, graph, &copyIn, 1, &scaleParams));
    factor = 77;  // the node has its own copy
    cudaMemsetParams clearParams = {};
    clearParams.dst = b;
    clearParams.value = 1;
    clearParams.elementSize = 1;
    clearParams.width = n * sizeof(int);
    clearParams.height = 1;
    CHECK(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &clearParams));
    void *sumArguments[] = {&b, &a, &count, &bias};
    cudaKernelNodeParams sumParams = kernelParams((void *)addTo, sumArguments);
    cudaGraphNode_t both[] = {timesThree, clear};
    CHECK(cudaGraphAddKernelNode(&sum, graph, both, 2, &sumParams));
    CHECK(cudaGraphAddMemcpyNode1D(&copyOut, graph, &sum, 1, host, b, n * sizeof(int), cudaMemcpyDeviceToHost));
    cudaHostNodeParams callParams = {look, &seen};
    CHECK(cudaGraphAddHostNode(&call, graph, &copyOut, 1, &callParams));
    CHECK(cudaGraphAddEmptyNode(&end, graph, &call, 1));

    size_t nodes = 0, roots = 0, edges = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(cudaGraphGetRootNodes(graph, nullptr, &roots));
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    expect(nodes == 7 && roots == 2 && edges == 6, "%zu nodes, %zu roots, %zu edges", nodes, roots, edges);
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(clear, &type));
    expect(type == cudaGraphNodeTypeMemset, "type %d", type);
    cudaKernelNodeParams told = {};
    CHECK(cudaGraphKernelNodeGetParams(timesThree, &told));
    expect(told.gridDim.x == blocks && told.func == (void *)scale, "grid %u, function %p", told.gridDim.x, told.func);
    expect(*static_cast<int *>(told.kernelParams[2]) == 3, "factor %d", *static_cast<int *>(told.kernelParams[2]));

    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    const int ones = 0x01010101;
    auto launch = [&](cudaGraphExec_t which, int by, int plus, const char *what) {
        std::memset(host, 0, n * sizeof(int));
        int calls = seen.calls;
        CHECK(cudaGraphLaunch(which, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < n; i++)
            expect(host[i] == ones + i * by + plus, "%s, %d: %d, expected %d", what, i, host[i], ones + i * by + plus);
        expect(seen.calls == calls + 1 && seen.last == host[10], "%s: %d calls, saw %d", what, seen.calls, seen.last);
    };
    launch(executable, 3, 5, "as built");
    launch(executable, 3, 5, "again");

    // What is instantiated does not follow the graph; its own parameters can change.
    factor = 4;
    CHECK(cudaGraphKernelNodeSetParams(timesThree, &scaleParams));
    launch(executable, 3, 5, "graph changed");
    factor = 7;
    CHECK(cudaGraphExecKernelNodeSetParams(executable, timesThree, &scaleParams));
    launch(executable, 7, 5, "executable changed");
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, graph, &info));
    expect(info.result == cudaGraphExecUpdateSuccess, "update says %d", info.result);
    launch(executable, 4, 5, "updated");

    // A clone, of which one node is disabled.
    cudaGraph_t clone;
    cudaGraphNode_t cloned;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&cloned, timesThree, clone));
    CHECK(cudaGraphDestroy(graph));
    cudaGraphExec_t second;
    CHECK(cudaGraphInstantiate(&second, clone, 0));
    launch(second, 4, 5, "clone");
    CHECK(cudaGraphNodeSetEnabled(second, cloned, 0));
    launch(second, 1, 5, "disabled");
    CHECK(cudaGraphNodeSetEnabled(second, cloned, 1));
    launch(second, 4, 5, "enabled");

    // A graph with the first inside, between a scaling before and one after; the topology differs, so no update.
    cudaGraph_t outer;
    cudaGraphNode_t inner, after, last;
    CHECK(cudaGraphCreate(&outer, 0));
    CHECK(cudaGraphAddChildGraphNode(&inner, outer, nullptr, 0, clone));
    int minus = -1;
    void *afterArguments[] = {&b, &count, &minus};
    cudaKernelNodeParams afterParams = kernelParams((void *)scale, afterArguments);
    CHECK(cudaGraphAddKernelNode(&after, outer, &inner, 1, &afterParams));
    CHECK(cudaGraphAddMemcpyNode1D(&last, outer, &after, 1, host, b, n * sizeof(int), cudaMemcpyDeviceToHost));
    cudaGraphExec_t third;
    CHECK(cudaGraphInstantiate(&third, outer, 0));
    CHECK(cudaGraphLaunch(third, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < n; i++) expect(host[i] == -(ones + i * 4 + 5), "inside, %d: %d", i, host[i]);
    expect(cudaGraphExecUpdate(executable, outer, &info) == cudaErrorGraphExecUpdateFailure, "another graph was taken");
    expect(info.result == cudaGraphExecUpdateErrorTopologyChanged || info.result == cudaGraphExecUpdateErrorNodeTypeChanged,
           "update says %d", info.result);
    cudaGetLastError();

    // Memory of a graph's own: b -> memory, doubled there, -> host.
    cudaGraph_t withMemory;
    cudaGraphNode_t alloc, fillIt, doubleIt, read, release;
    CHECK(cudaGraphCreate(&withMemory, 0));
    cudaMemAllocNodeParams allocParams = {};
    allocParams.poolProps.allocType = cudaMemAllocationTypePinned;
    allocParams.poolProps.location.type = cudaMemLocationTypeDevice;
    allocParams.bytesize = n * sizeof(int);
    CHECK(cudaGraphAddMemAllocNode(&alloc, withMemory, nullptr, 0, &allocParams));
    int *own = static_cast<int *>(allocParams.dptr), two = 2;
    CHECK(cudaGraphAddMemcpyNode1D(&fillIt, withMemory, &alloc, 1, own, b, n * sizeof(int), cudaMemcpyDeviceToDevice));
    void *doubleArguments[] = {&own, &count, &two};
    cudaKernelNodeParams doubleParams = kernelParams((void *)scale, doubleArguments);
    CHECK(cudaGraphAddKernelNode(&doubleIt, withMemory, &fillIt, 1, &doubleParams));
    CHECK(cudaGraphAddMemcpyNode1D(&read, withMemory, &doubleIt, 1, host, own, n * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(cudaGraphAddMemFreeNode(&release, withMemory, &read, 1, own));
    cudaGraphExec_t fourth;
    CHECK(cudaGraphInstantiate(&fourth, withMemory, 0));
    for (int launches = 0; launches < 2; launches++) {
        CHECK(cudaGraphLaunch(fourth, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < n; i++) expect(host[i] == -2 * (ones + i * 4 + 5), "memory, %d: %d", i, host[i]);
    }

    // A cycle cannot be instantiated.
    CHECK(cudaGraphAddDependencies(outer, &last, &inner, nullptr, 1));
    cudaGraphExec_t never;
    expect(cudaGraphInstantiate(&never, outer, 0) == cudaErrorInvalidValue, "a cycle was instantiated");
    cudaGetLastError();
    for (cudaGraphExec_t one : {executable, second, third, fourth}) CHECK(cudaGraphExecDestroy(one));
    for (cudaGraph_t one : {clone, outer, withMemory}) CHECK(cudaGraphDestroy(one));
    std::printf("graph_api nodes=%zu calls=%d\n", nodes, seen.calls);
    return verdict();
}
