// nvcc: -rdc=true
// Kernels that launch kernels: fire and forget, tails, streams, events, copies, recursion, errors.
#include "check.h"

#include <algorithm>

#define EXPECT(...) expect((__VA_ARGS__), "line %d: %s", __LINE__, #__VA_ARGS__)

struct Large {
    int values[100];
};

__global__ void add(int *word, int value) { atomicAdd(word, value); }

__global__ void set(int *word, const int *from) { *word = *from; }

__global__ void ctas(int *count) {
    if (threadIdx.x == 0) atomicAdd(count, 1);
}

// For `nested_module`.
__global__ void wait_for(volatile int *flag) {
    while (*flag == 0) {
    }
}

// Every thread launches, with many parameters.
__global__ void take(Large large, int *out) { atomicAdd(out, large.values[blockIdx.x]); }

__global__ void all_launch_large(int *out) {
    Large large;
    large.values[0] = 1;
    take<<<1, 1, 0, cudaStreamFireAndForget>>>(large, out);
}

// Every thread launches.
__global__ void all_threads(int *words) {
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    add<<<1, 1, 0, cudaStreamFireAndForget>>>(words + me % 7, me);
}

// Tails come behind everything else, in their order, and a tail's own tail before the next.
__global__ void tail(int *words, int step) {
    if (words[0] == step) words[0] = step + 1;
    if (step == 1) tail<<<1, 1, 0, cudaStreamTailLaunch>>>(words, 2);
}

__global__ void slow(int *words) {
    for (int i = 0; i < 2000; i++) atomicAdd(words + 1, 1);
    if (words[1] == 4 * 2000) words[0] = 1;
}

__global__ void tails(int *words) {
    tail<<<1, 1, 0, cudaStreamTailLaunch>>>(words, 1);
    tail<<<1, 1, 0, cudaStreamTailLaunch>>>(words, 3);
    slow<<<4, 1, 0, cudaStreamFireAndForget>>>(words);
}

// A stream keeps its order, and events order streams.
__global__ void times(int *word, int factor, int more) { *word = *word * factor + more; }

__global__ void streams(int *words, int *copy) {
    cudaStream_t one, two;
    cudaEvent_t event;
    int error = cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    error |= cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    error |= cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    for (int i = 1; i <= 5; i++) times<<<1, 1, 0, one>>>(words, 3, i);
    error |= cudaEventRecord(event, one);
    error |= cudaStreamWaitEvent(two, event, 0);
    times<<<1, 1, 0, two>>>(words, 2, 1);
    error |= cudaMemcpyAsync(copy, words, sizeof(int), cudaMemcpyDeviceToDevice, two);
    error |= cudaMemsetAsync(copy + 1, 0x11, 2 * sizeof(int), two);
    error |= cudaStreamDestroy(one);
    error |= cudaStreamDestroy(two);
    error |= cudaEventDestroy(event);
    words[1] = error;
}

// The default stream of a CTA keeps its order.
__global__ void default_stream(int *words) {
    for (int i = 1; i <= 4; i++) times<<<1, 1>>>(words + blockIdx.x, 10, i);
}

// A large parameter, another shape, dynamic shared memory.
__global__ void with_large(Large large, int *out) {
    extern __shared__ int shared[];
    int me = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    shared[me] = large.values[me % 100];
    __syncthreads();
    int threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(out, shared[threads - 1 - me] + blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z);
}

__global__ void launch_large(int *out) {
    Large large;
    for (int i = 0; i < 100; i++) large.values[i] = i;
    dim3 block(8, 4, 2);
    with_large<<<dim3(2, 3, 2), block, 64 * sizeof(int)>>>(large, out);
}

// By a table of kernels in device memory.
typedef void (*Kernel)(int *, int);
__device__ Kernel table[2] = {add, tail};

__global__ void by_table(int *word, int which) { table[which]<<<1, 1>>>(word, 5); }

// Sorts by recursion, as deep as it needs.
__global__ void quicksort(int *values, int left, int right, int depth) {
    if (right - left < 16 || depth > 18) {
        for (int i = left + 1; i <= right; i++) {
            int value = values[i], at = i;
            for (; at > left && values[at - 1] > value; at--) values[at] = values[at - 1];
            values[at] = value;
        }
        return;
    }
    int pivot = values[(left + right) / 2], low = left, high = right;
    while (low <= high) {
        while (values[low] < pivot) low++;
        while (values[high] > pivot) high--;
        if (low <= high) {
            int value = values[low];
            values[low++] = values[high];
            values[high--] = value;
        }
    }
    if (left < high) quicksort<<<1, 1, 0, cudaStreamFireAndForget>>>(values, left, high, depth + 1);
    if (low < right) quicksort<<<1, 1, 0, cudaStreamFireAndForget>>>(values, low, right, depth + 1);
}

// Each level counts; beyond the greatest depth a launch fails.
__global__ void deeper(int *levels, int *error) {
    ++*levels;
    deeper<<<1, 1>>>(levels, error);
    cudaError_t failed = cudaGetLastError();
    if (failed != cudaSuccess) *error = failed;
}

__global__ void bad(int *errors, int *word) {
    add<<<1, 2000>>>(word, 1);
    errors[0] = cudaPeekAtLastError();
    errors[1] = cudaGetLastError();
    errors[2] = cudaGetLastError();
    add<<<0, 1>>>(word, 1);
    errors[3] = cudaGetLastError();
    errors[4] = cudaGetErrorString(cudaSuccess)[0];
    add<<<1, 1, 1 << 20>>>(word, 1);
    errors[6] = cudaGetLastError();
    add<<<1, 1>>>(word, 7);
    errors[5] = cudaGetLastError();
}

__global__ void too_many(int *word, int *failed, int count) {
    for (int i = 0; i < count; i++) {
        add<<<1, 1, 0, cudaStreamFireAndForget>>>(word, 1);
        cudaError_t error = cudaGetLastError();
        if (error == cudaErrorLaunchPendingCountExceeded) ++*failed;
        else if (error != cudaSuccess) *failed = -1000000;
    }
}

__global__ void attributes(int *found) {
    int device = -1;
    cudaGetDevice(&device);
    cudaGetDeviceCount(found);
    cudaDeviceGetAttribute(found + 1, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(found + 2, cudaDevAttrComputeCapabilityMajor, device);
    found[3] = cudaDeviceGetAttribute(found + 1, cudaDevAttrWarpSize, device + 1);
    void *memory = nullptr;
    found[4] = cudaMalloc(&memory, 64);
    *static_cast<int *>(memory) = 3;
    found[5] = *static_cast<int *>(memory) + cudaFree(memory);
    found[6] = device;
}

int main() {
    int *words;
    CHECK(cudaMalloc(&words, 1 << 20));
    int host[64];
    auto clear = [&] { CHECK(cudaMemset(words, 0, 1 << 20)); };
    auto read = [&](int count) {
        CHECK(cudaMemcpy(host, words, count * sizeof(int), cudaMemcpyDeviceToHost));
    };

    clear();
    all_threads<<<5, 64>>>(words);
    read(7);
    for (int i = 0; i < 7; i++) {
        int sum = 0;
        for (int me = i; me < 320; me += 7) sum += me;
        EXPECT(host[i] == sum);
    }

    clear();
    tails<<<1, 1>>>(words);
    read(2);
    EXPECT(host[0] == 4 && host[1] == 8000);

    clear();
    streams<<<1, 1>>>(words, words + 8);
    read(12);
    int want = 0;
    for (int i = 1; i <= 5; i++) want = want * 3 + i;
    want = want * 2 + 1;
    EXPECT(host[0] == want && host[8] == want && host[1] == 0);
    EXPECT(host[9] == 0x11111111 && host[10] == 0x11111111 && host[11] == 0);

    clear();
    default_stream<<<40, 1>>>(words);
    read(40);
    for (int i = 0; i < 40; i++) EXPECT(host[i] == 1234);

    clear();
    launch_large<<<1, 1>>>(words);
    read(1);
    int sum = 0;
    for (int i = 0; i < 64; i++) sum += i;
    // 12 CTAs: x from 0 to 1, y to 2, z to 1.
    EXPECT(host[0] == 12 * sum + 64 * (6 * 1 + 10 * 4 * 3 + 100 * 6));

    clear();
    by_table<<<1, 1>>>(words, 0);
    read(1);
    EXPECT(host[0] == 5);

    const int count = 3000;
    std::vector<int> values(count);
    unsigned seed = 1;
    for (int &value : values) value = (seed = seed * 1664525 + 1013904223) >> 12;
    CHECK(cudaMemcpy(words, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    quicksort<<<1, 1>>>(words, 0, count - 1, 0);
    std::sort(values.begin(), values.end());
    std::vector<int> sorted(count);
    CHECK(cudaMemcpy(sorted.data(), words, count * sizeof(int), cudaMemcpyDeviceToHost));
    EXPECT(sorted == values);

    clear();
    deeper<<<1, 1>>>(words, words + 1);
    read(2);
    EXPECT(host[0] == 25 && host[1] == cudaErrorLaunchPendingCountExceeded);

    clear();
    bad<<<1, 1>>>(words, words + 8);
    read(9);
    EXPECT(host[0] == cudaErrorInvalidConfiguration && host[1] == cudaErrorInvalidConfiguration);
    EXPECT(host[2] == 0 && host[3] == cudaErrorInvalidConfiguration && host[4] == 'n');
    EXPECT(host[5] == 0 && host[6] == cudaErrorInvalidValue && host[8] == 7);

    clear();
    all_launch_large<<<2, 512>>>(words);
    read(1);
    EXPECT(host[0] == 1024);

    // Launches that wait in one stream share what they need.
    clear();
    size_t before, after, total;
    CHECK(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 100; i++) default_stream<<<1, 1>>>(words);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemGetInfo(&after, &total));
    EXPECT(before - after < 16 << 20);

    clear();
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, 128));
    too_many<<<1, 1>>>(words, words + 1, 1200);
    read(2);
    EXPECT(host[0] >= 128 && host[1] > 0 && host[0] + host[1] == 1200);
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, 1200));
    clear();
    too_many<<<1, 1>>>(words, words + 1, 1200);
    read(2);
    EXPECT(host[0] == 1200 && host[1] == 0);

    clear();
    attributes<<<1, 1>>>(words);
    read(7);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    int devices;
    CHECK(cudaGetDeviceCount(&devices));
    EXPECT(host[0] == devices && host[1] == properties.multiProcessorCount);
    EXPECT(host[2] == properties.major && host[3] != 0 && host[4] == 0 && host[5] == 3);
    EXPECT(host[6] == 0);

    // Many streams of the host at once, what comes behind, and a graph.
    clear();
    cudaStream_t hosts[4];
    for (auto &stream : hosts) CHECK(cudaStreamCreate(&stream));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            streams<<<1, 1, 0, hosts[i]>>>(words + 64 * i, words + 64 * i + 8);
            set<<<1, 1, 0, hosts[i]>>>(words + 64 * i + 16 + round, words + 64 * i + 8);
            CHECK(cudaMemsetAsync(words + 64 * i, 0, 4, hosts[i]));
        }
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 4; i++) {
        CHECK(cudaMemcpy(host, words + 64 * i, sizeof host, cudaMemcpyDeviceToHost));
        for (int round = 0; round < 5; round++) EXPECT(host[16 + round] == want);
    }
    clear();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(hosts[0], cudaStreamCaptureModeGlobal));
    launch_large<<<1, 1, 0, hosts[0]>>>(words);
    set<<<1, 1, 0, hosts[0]>>>(words + 1, words);
    CHECK(cudaStreamEndCapture(hosts[0], &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, hosts[1]));
    CHECK(cudaGraphLaunch(executable, hosts[1]));
    CHECK(cudaStreamSynchronize(hosts[1]));
    read(2);
    EXPECT(host[0] == 2 * (12 * sum + 64 * 726) && host[1] == host[0]);

    // The program sees its own parameters only.
    cudaFuncAttributes facts;
    CHECK(cudaFuncGetAttributes(&facts, all_threads));
    expect(facts.sharedSizeBytes == 0, "%zu bytes of shared memory", facts.sharedSizeBytes);
    std::printf("nested sorted=%d\n", count);
    return verdict();
}
