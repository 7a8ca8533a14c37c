// libcu++: barriers with a token for arrival and one for waiting, atomics with orders and scopes, and a pipeline between
// producer and consumer warps.
#include <cuda/atomic>
#include <cuda/barrier>

#include "check.h"

// Barriers are initialised by `init`, not by their constructor.
#pragma nv_diag_suppress static_var_with_dynamic_init

using Barrier = cuda::barrier<cuda::thread_scope_block>;

const int BLOCK = 128;

// Split arrival: what was written before arriving is seen after waiting, and work happens between.
__global__ void split(const int *in, int *out, int rounds) {
    __shared__ Barrier barrier;
    __shared__ int data[BLOCK];
    if (threadIdx.x == 0) init(&barrier, BLOCK);
    __syncthreads();
    int value = in[blockIdx.x * BLOCK + threadIdx.x];
    for (int round = 0; round < rounds; round++) {
        data[threadIdx.x] = value;
        Barrier::arrival_token token = barrier.arrive();
        value = value * 3 + 1;
        barrier.wait(std::move(token));
        value += data[(threadIdx.x + 37) % BLOCK];
        barrier.arrive_and_wait();
    }
    out[blockIdx.x * BLOCK + threadIdx.x] = value;
}

// One warp fills two buffers in turn, the other three empty them.
__global__ void pipeline(int *sums, int steps) {
    __shared__ Barrier filled[2], emptied[2];
    __shared__ int buffer[2][96];
    if (threadIdx.x < 2) {
        init(&filled[threadIdx.x], BLOCK);
        init(&emptied[threadIdx.x], BLOCK);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int step = 0; step < steps; step++) {
            emptied[step % 2].arrive_and_wait();
            for (int k = 0; k < 3; k++) buffer[step % 2][threadIdx.x + 32 * k] = step * 1000 + threadIdx.x + 32 * k;
            (void)filled[step % 2].arrive();
        }
    } else {
        int me = threadIdx.x - 32, sum = 0;
        (void)emptied[0].arrive();
        (void)emptied[1].arrive();
        for (int step = 0; step < steps; step++) {
            filled[step % 2].arrive_and_wait();
            sum += buffer[step % 2][95 - me];
            (void)emptied[step % 2].arrive();
        }
        sums[blockIdx.x * 96 + me] = sum;
    }
}

// Blocks hand a message on: a flag released by the writer and acquired by the reader carries the data with it.
__global__ void message(cuda::atomic<int, cuda::thread_scope_device> *flags, int *data, int *wrong) {
    int me = blockIdx.x;
    if (threadIdx.x == 0 && me > 0) {
        while (flags[me - 1].load(cuda::memory_order_acquire) == 0) {
        }
    }
    __syncthreads();
    int expected = me == 0 ? 0 : data[(me - 1) * blockDim.x + threadIdx.x];
    if (me > 0 && expected != me * 100 + static_cast<int>(threadIdx.x)) atomicAdd(wrong, 1);
    data[me * blockDim.x + threadIdx.x] = (me + 1) * 100 + threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) flags[me].store(1, cuda::memory_order_release);
}

__global__ void counts(unsigned long long *total) {
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> counter(*total);
    unsigned long long seen = counter.fetch_add(2, cuda::memory_order_relaxed);
    while (!counter.compare_exchange_weak(seen, seen + 1, cuda::memory_order_acq_rel)) {
    }
}

int main() {
    const int blocks = 6, rounds = 5;
    Random random;
    std::vector<int> in(blocks * BLOCK);
    for (int &value : in) value = static_cast<int>(random.below(1000));
    int *out = blank<int>(blocks * BLOCK);
    split<<<blocks, BLOCK>>>(upload(in), out, rounds);
    CHECK(cudaGetLastError());
    std::vector<int> found = download(out, in.size());
    for (int b = 0; b < blocks; b++) {
        std::vector<int> value(in.begin() + b * BLOCK, in.begin() + (b + 1) * BLOCK), next(BLOCK);
        for (int round = 0; round < rounds; round++) {
            for (int t = 0; t < BLOCK; t++) next[t] = value[t] * 3 + 1 + value[(t + 37) % BLOCK];
            value = next;
        }
        for (int t = 0; t < BLOCK; t++)
            expect(found[b * BLOCK + t] == value[t], "split block %d thread %d: %d, expected %d", b, t, found[b * BLOCK + t],
                   value[t]);
    }

    const int steps = 10;
    int *sums = blank<int>(blocks * 96);
    pipeline<<<blocks, BLOCK>>>(sums, steps);
    CHECK(cudaGetLastError());
    found = download(sums, blocks * 96);
    for (int i = 0; i < blocks * 96; i++) {
        int expected = 1000 * steps * (steps - 1) / 2 + steps * (95 - i % 96);
        expect(found[i] == expected, "pipeline %d: %d, expected %d", i, found[i], expected);
    }

    const int chain = 16;
    cuda::atomic<int, cuda::thread_scope_device> *flags;
    CHECK(cudaMalloc(&flags, chain * sizeof *flags));
    CHECK(cudaMemset(flags, 0, chain * sizeof *flags));
    int *data = blank<int>(chain * 64), *wrong = upload(std::vector<int>{0});
    message<<<chain, 64>>>(flags, data, wrong);
    CHECK(cudaGetLastError());
    expect(download(wrong, 1)[0] == 0, "%d threads read a stale message", download(wrong, 1)[0]);

    unsigned long long *total = upload(std::vector<unsigned long long>{0});
    counts<<<10, 100>>>(total);
    CHECK(cudaGetLastError());
    expect(download(total, 1)[0] == 3000, "count %llu", download(total, 1)[0]);
    std::printf("barrier blocks=%d rounds=%d chain=%d\n", blocks, rounds, chain);
    return verdict();
}
