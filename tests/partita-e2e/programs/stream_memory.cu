// Streams that write words of memory and wait for them: words of the device and of the host, 32 and 64 bits, every condition, batches,
// graphs. Who writes is a stream, a kernel or the host, with and without a call.
#include "driver.h"
#include <thread>
#include <unistd.h>

__global__ void fillWith(unsigned *data, int n, unsigned value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = value;
}

__global__ void countUp(unsigned *word) { atomicAdd(word, 1); }

int main() {
    CHECK(cudaFree(nullptr));
    USE(cuStreamWaitValue32);
    USE(cuStreamWaitValue64);
    USE(cuStreamWriteValue32);
    USE(cuStreamWriteValue64);
    USE(cuStreamBatchMemOp);
    USE(cuDeviceGetAttribute);
    for (CUdevice_attribute attribute :
         {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR}) {
        int can = 0;
        DRIVER(cuDeviceGetAttribute(&can, attribute, 0));
        expect(can == 1, "attribute %d", attribute);
    }
    cudaStream_t first, second;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    const int n = 10000;
    unsigned *data = blank<unsigned>(n), *copy = blank<unsigned>(n);
    unsigned *words;
    CHECK(cudaMalloc(&words, 64));
    CHECK(cudaMemset(words, 0, 64));
    CHECK(cudaDeviceSynchronize());
    CUdeviceptr word = reinterpret_cast<CUdeviceptr>(words), wide = word + 16;

    // The second stream waits for what the first writes, though it was asked first.
    DRIVER(cuStreamWaitValue32(second, word, 5, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(cudaMemcpyAsync(copy, data, n * sizeof *data, cudaMemcpyDeviceToDevice, second));
    expect(cudaStreamQuery(second) == cudaErrorNotReady, "nobody has written yet");
    fillWith<<<(n + 255) / 256, 256, 0, first>>>(data, n, 42);
    DRIVER(cuStreamWriteValue32(first, word, 6, CU_STREAM_WRITE_VALUE_DEFAULT));
    CHECK(cudaStreamSynchronize(second));
    expect(download(copy, n)[n - 1] == 42, "%u", download(copy, n)[n - 1]);

    // A kernel's count.
    CHECK(cudaMemset(words, 0, 4));
    CHECK(cudaDeviceSynchronize());
    DRIVER(cuStreamWaitValue32(second, word, 3, CU_STREAM_WAIT_VALUE_EQ));
    DRIVER(cuStreamWriteValue32(second, word + 4, 9, 0));
    for (int i = 0; i < 3; i++) {
        expect(download(words, 2)[1] == 0, "after %d", i);
        countUp<<<1, 1, 0, first>>>(words);
        CHECK(cudaStreamSynchronize(first));
    }
    CHECK(cudaStreamSynchronize(second));
    expect(download(words, 2)[1] == 9, "%u", download(words, 2)[1]);

    // 64 bits, by bits.
    DRIVER(cuStreamWriteValue64(first, wide, 1ull << 40, 0));
    DRIVER(cuStreamWaitValue64(first, wide, 3ull << 40, CU_STREAM_WAIT_VALUE_AND));
    DRIVER(cuStreamWaitValue64(first, wide, ~0ull << 1, CU_STREAM_WAIT_VALUE_NOR));
    CHECK(cudaStreamSynchronize(first));

    // The host writes a word without a call, before and while its main thread waits.
    volatile unsigned *shared;
    CHECK(cudaHostAlloc(reinterpret_cast<void **>(const_cast<unsigned **>(&shared)), 4096, cudaHostAllocMapped));
    CUdeviceptr sharedWord = reinterpret_cast<CUdeviceptr>(shared);
    shared[0] = shared[1] = 0;
    for (unsigned round = 1; round <= 3; round++) {
        DRIVER(cuStreamWaitValue32(second, sharedWord, round, CU_STREAM_WAIT_VALUE_GEQ));
        DRIVER(cuStreamWriteValue32(second, sharedWord + 4, 100 + round, 0));
        expect(cudaStreamQuery(second) == cudaErrorNotReady, "round %u", round);
        expect(shared[1] == (round == 1 ? 0 : 99 + round), "%u before its time", shared[1]);
        std::thread writer([&] {
            if (round != 1) usleep(20000);
            shared[0] = round;
        });
        if (round == 1) writer.join();
        CHECK(cudaStreamSynchronize(second));
        if (round != 1) writer.join();
        expect(shared[1] == 100 + round, "round %u: %u", round, shared[1]);
    }

    // A batch, and the same captured.
    CUstreamBatchMemOpParams batch[3] = {};
    batch[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[0].writeValue.address = word;
    batch[0].writeValue.value = 70;
    batch[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    batch[1].waitValue.address = word;
    batch[1].waitValue.value = 70;
    batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    batch[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    batch[2].writeValue.address = wide;
    batch[2].writeValue.value64 = 0x1122334455667788;
    DRIVER(cuStreamBatchMemOp(first, 3, batch, 0));
    CHECK(cudaStreamSynchronize(first));
    expect(download(reinterpret_cast<unsigned long long *>(words) + 2, 1)[0] == 0x1122334455667788, "the wide word");
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    batch[0].writeValue.value = batch[1].waitValue.value = 71;
    CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    DRIVER(cuStreamBatchMemOp(first, 3, batch, 0));
    fillWith<<<1, 1, 0, first>>>(words + 1, 1, 5);
    CHECK(cudaStreamEndCapture(first, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    expect(download(words, 1)[0] == 70, "captured, not done");
    CHECK(cudaGraphLaunch(executable, first));
    CHECK(cudaStreamSynchronize(first));
    std::vector<unsigned> after = download(words, 2);
    expect(after[0] == 71 && after[1] == 5, "%u %u", after[0], after[1]);
    USE(cuGraphBatchMemOpNodeGetParams);
    cudaGraphNode_t nodes[4];
    size_t count = 4;
    CHECK(cudaGraphGetNodes(graph, nodes, &count));
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        CUDA_BATCH_MEM_OP_NODE_PARAMS params;
        if (cuGraphBatchMemOpNodeGetParams(nodes[i], &params) != CUDA_SUCCESS) continue;
        expect(params.count == 3 && params.paramArray[2].writeValue.value64 == 0x1122334455667788, "another batch");
        found++;
    }
    expect(count == 2 && found == 1, "%zu nodes, %d batches", count, found);

    // Mistakes.
    unsigned own = 0;
    expect(cuStreamWriteValue32(first, word + 2, 1, 0) == CUDA_ERROR_INVALID_VALUE, "not aligned");
    expect(cuStreamWaitValue64(first, word + 4, 1, 0) == CUDA_ERROR_INVALID_VALUE, "not aligned to 8");
    expect(cuStreamWaitValue32(first, word, 1, 8) == CUDA_ERROR_INVALID_VALUE, "unknown flags");
    expect(cuStreamWaitValue32(first, reinterpret_cast<CUdeviceptr>(&own), 0, 0) == CUDA_ERROR_INVALID_VALUE, "not the device's");
    CHECK(cudaStreamSynchronize(first));
    // Nobody writes it any more: a process that is gone holds nobody up.
    DRIVER(cuStreamWaitValue32(second, word, 1u << 30, CU_STREAM_WAIT_VALUE_EQ));
    std::printf("stream_memory words=%d\n", 16);
    int code = verdict();
    std::fflush(stdout);
    _exit(code);
}
