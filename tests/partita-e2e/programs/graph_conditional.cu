// Conditional nodes of graphs: a loop that a kernel ends, both branches of a condition, a choice of several, conditions inside
// loops, first values, and what cannot be done with such graphs.
#include "check.h"
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using Handle = cudaGraphConditionalHandle;

// Halves the number until it is 1, and counts.
__global__ void halve(Handle goes_on, unsigned *number, unsigned *turns) {
    *number /= 2;
    *turns += 1;
    cudaGraphSetConditional(goes_on, *number > 1);
}

__global__ void add(unsigned *to, unsigned by) { atomicAdd(to, by); }

__global__ void choose(Handle handle, const unsigned *value) { cudaGraphSetConditional(handle, *value); }

// Sets one of two words by whether a number is odd, and says so to a condition.
__global__ void is_odd(Handle handle, const unsigned *number) { cudaGraphSetConditional(handle, *number % 2); }

cudaGraphNode_t add_kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> before, void *kernel, std::vector<void *> arguments,
                           int threads = 1) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = kernel;
    params.kernel.gridDim = dim3(1);
    params.kernel.blockDim = dim3(threads);
    params.kernel.kernelParams = arguments.data();
    cudaGraphNode_t node;
    CHECK(cudaGraphAddNode(&node, graph, before.data(), nullptr, before.size(), &params));
    return node;
}

Handle condition(cudaGraph_t graph, unsigned first, unsigned flags) {
    Handle handle;
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, first, flags));
    return handle;
}

// A conditional node, and the graphs inside.
std::vector<cudaGraph_t> decide(cudaGraphNode_t *node, cudaGraph_t graph, std::vector<cudaGraphNode_t> before, Handle handle,
                                cudaGraphConditionalNodeType type, unsigned count) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = count;
    CHECK(cudaGraphAddNode(node, graph, before.data(), nullptr, before.size(), &params));
    return {params.conditional.phGraph_out, params.conditional.phGraph_out + count};
}

struct Words {
    unsigned *device;
    Words(std::vector<unsigned> first) : device(nullptr) {
        CHECK(cudaMalloc(&device, first.size() * sizeof(unsigned)));
        set(first);
    }
    void set(std::vector<unsigned> values) {
        CHECK(cudaMemcpy(device, values.data(), values.size() * sizeof(unsigned), cudaMemcpyHostToDevice));
    }
    void expect_all(std::vector<unsigned> values, const char *what) {
        auto found = download(device, values.size());
        for (size_t i = 0; i < values.size(); i++) expect(found[i] == values[i], "%s: word %zu is %u, not %u", what, i, found[i], values[i]);
    }
};

cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    return executable;
}

void run(cudaGraphExec_t executable, cudaStream_t stream) {
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
}

// A loop between two kernels; the loop's graph is captured.
void loop(cudaStream_t stream) {
    Words words({1000, 0, 0});
    unsigned *number = words.device, *turns = number + 1, *around = number + 2, one = 1, hundred = 100;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    Handle goes_on = condition(graph, 1, cudaGraphCondAssignDefault);
    auto first = add_kernel(graph, {}, (void *)add, {&around, &one});
    cudaGraphNode_t node, kind;
    auto inside = decide(&node, graph, {first}, goes_on, cudaGraphCondTypeWhile, 1);
    kind = node;
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(kind, &type));
    expect(type == cudaGraphNodeTypeConditional, "a node of type %d", type);
    add_kernel(graph, {node}, (void *)add, {&around, &hundred});
    CHECK(cudaStreamBeginCaptureToGraph(stream, inside[0], nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    halve<<<1, 1, 0, stream>>>(goes_on, number, turns);
    cudaGraph_t captured;
    CHECK(cudaStreamEndCapture(stream, &captured));
    expect(captured == inside[0], "the captured graph is another");
    auto executable = instantiate(graph);
    run(executable, stream);
    words.expect_all({1, 9, 101}, "1000 is halved");
    // Four launches without a pause: each begins with the first value.
    words.set({1 << 20, 0, 0});
    for (int i = 0; i < 4; i++) CHECK(cudaGraphLaunch(executable, i % 2 ? stream : cudaStreamPerThread));
    CHECK(cudaDeviceSynchronize());
    words.expect_all({0, 23, 404}, "four launches");
    // A launch whose loop still runs ends well without its graph.
    words.set({1u << 31, 0, 0});
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamSynchronize(stream));
    words.expect_all({1, 31, 101}, "a graph that is gone");
}

// The second graph of a condition runs where it does not hold; without one nothing runs.
void branches(cudaStream_t stream) {
    Words words({0, 0, 0});
    unsigned *value = words.device, *holds = value + 1, *fails = value + 2, one = 1;
    for (unsigned count : {1u, 2u}) {
        cudaGraph_t graph;
        CHECK(cudaGraphCreate(&graph, 0));
        Handle handle = condition(graph, 0, 0);
        auto first = add_kernel(graph, {}, (void *)choose, {&handle, &value});
        cudaGraphNode_t node;
        auto inside = decide(&node, graph, {first}, handle, cudaGraphCondTypeIf, count);
        add_kernel(inside[0], {}, (void *)add, {&holds, &one}, 32);
        if (count == 2) add_kernel(inside[1], {}, (void *)add, {&fails, &one});
        auto executable = instantiate(graph);
        words.set({0, 0, 0});
        run(executable, stream);
        words.expect_all({0, 0, count == 2}, "where it fails");
        words.set({5, 0, 0});
        run(executable, stream);
        words.expect_all({5, 32, 0}, "where it holds");
        CHECK(cudaGraphExecDestroy(executable));
        CHECK(cudaGraphDestroy(graph));
    }
}

void choices(cudaStream_t stream) {
    Words words({0, 0, 0, 0});
    unsigned *value = words.device;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    Handle handle = condition(graph, 0, 0);
    auto first = add_kernel(graph, {}, (void *)choose, {&handle, &value});
    cudaGraphNode_t node;
    auto inside = decide(&node, graph, {first}, handle, cudaGraphCondTypeSwitch, 3);
    for (unsigned i = 0; i < 3; i++) {
        unsigned *to = value + 1 + i, by = i + 1;
        add_kernel(inside[i], {}, (void *)add, {&to, &by});
    }
    auto executable = instantiate(graph);
    for (unsigned chosen : {2u, 0u, 7u, 1u}) {
        words.set({chosen, 0, 0, 0});
        run(executable, stream);
        words.expect_all({chosen, chosen == 0 ? 1u : 0, chosen == 1 ? 2u : 0, chosen == 2 ? 3u : 0}, "a choice");
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// Counts the odd numbers on the way from a number to 1.
void inside_a_loop(cudaStream_t stream) {
    Words words({1000, 0, 0});
    unsigned *number = words.device, *turns = number + 1, *odd = number + 2, one = 1;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    Handle goes_on = condition(graph, 1, cudaGraphCondAssignDefault);
    cudaGraphNode_t node, inner;
    auto inside = decide(&node, graph, {}, goes_on, cudaGraphCondTypeWhile, 1);
    Handle counts = condition(inside[0], 0, cudaGraphCondAssignDefault);
    auto looks = add_kernel(inside[0], {}, (void *)is_odd, {&counts, &number});
    auto counted = decide(&inner, inside[0], {looks}, counts, cudaGraphCondTypeIf, 1);
    add_kernel(counted[0], {}, (void *)add, {&odd, &one});
    add_kernel(inside[0], {inner}, (void *)halve, {&goes_on, &number, &turns});
    auto executable = instantiate(graph);
    run(executable, stream);
    // 1000 500 250 125 62 31 15 7 3
    words.expect_all({1, 9, 5}, "odd numbers");
    words.set({4096, 0, 0});
    run(executable, stream);
    words.expect_all({1, 12, 0}, "no odd numbers");

    cudaGraph_t clone;
    expect(cudaGraphClone(&clone, graph) == cudaErrorNotSupported, "it was cloned");
    cudaGetLastError();
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = goes_on + 1;
    params.conditional.type = cudaGraphCondTypeIf;
    params.conditional.size = 1;
    expect(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params) == cudaErrorInvalidValue, "a wrong handle was taken");
    params.conditional.handle = goes_on;
    params.conditional.size = 3;
    expect(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params) == cudaErrorInvalidValue, "a condition with three graphs");
    cudaGetLastError();
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// A loop that adds to a sum in each turn; every graph has a handle of its own.
struct Adder {
    cudaGraph_t graph;
    Adder(unsigned *number, unsigned by) {
        unsigned *turns = number + 1, *sum = number + 2;
        CHECK(cudaGraphCreate(&graph, 0));
        Handle goes_on = condition(graph, 1, cudaGraphCondAssignDefault);
        cudaGraphNode_t node;
        auto inside = decide(&node, graph, {}, goes_on, cudaGraphCondTypeWhile, 1);
        auto first = add_kernel(inside[0], {}, (void *)add, {&sum, &by});
        add_kernel(inside[0], {first}, (void *)halve, {&goes_on, &number, &turns});
    }
    ~Adder() { CHECK(cudaGraphDestroy(graph)); }
};

void wait_for(void *flag) {
    while (!static_cast<std::atomic<bool> *>(flag)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// An update concerns the launches that follow, not one that waits.
void updates(cudaStream_t stream) {
    Words words({16, 0, 0});
    unsigned *number = words.device;
    Adder ones(number, 1), hundreds(number, 100);
    auto executable = instantiate(ones.graph);
    std::atomic<bool> goes_on{false};
    CHECK(cudaLaunchHostFunc(stream, wait_for, &goes_on));
    CHECK(cudaGraphLaunch(executable, stream));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, hundreds.graph, &info));
    // The second launch finds 1, and makes one turn.
    CHECK(cudaGraphLaunch(executable, stream));
    goes_on = true;
    CHECK(cudaStreamSynchronize(stream));
    words.expect_all({0, 5, 104}, "an update");
    cudaGraph_t other;
    CHECK(cudaGraphCreate(&other, 0));
    cudaGraphNode_t node;
    decide(&node, other, {}, condition(other, 1, cudaGraphCondAssignDefault), cudaGraphCondTypeWhile, 1);
    expect(cudaGraphExecUpdate(executable, other, &info) == cudaErrorGraphExecUpdateFailure, "an empty loop was taken");
    cudaGetLastError();
    CHECK(cudaGraphDestroy(other));
    CHECK(cudaGraphExecDestroy(executable));
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    loop(stream);
    branches(stream);
    choices(stream);
    inside_a_loop(stream);
    updates(stream);
    CHECK(cudaStreamDestroy(stream));
    std::printf("graph_conditional of loops and branches\n");
    return verdict();
}
