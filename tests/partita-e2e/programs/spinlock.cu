// Locks that lanes of one warp take from each other: possible since Volta, where threads of a warp are scheduled
// independently.
#include "check.h"

__device__ int lock = 0;
__device__ volatile unsigned long long protectedSum = 0;
__device__ volatile int holders = 0, conflicts = 0;

__device__ void acquire(int *mutex) {
    while (atomicCAS(mutex, 0, 1) != 0) __nanosleep(20);
    __threadfence();
}

__device__ void release(int *mutex) {
    __threadfence();
    atomicExch(mutex, 0);
}

// Every thread enters the critical section once and does what no atomic instruction could.
__global__ void accumulate() {
    acquire(&lock);
    holders = holders + 1;
    if (holders != 1) conflicts = conflicts + 1;
    protectedSum = protectedSum * 3 % 1000003 + 1;
    holders = holders - 1;
    release(&lock);
}

// A hand-over from lane to lane, in the reverse order of their numbers.
__global__ void relay(volatile int *turn, int *order) {
    int me = blockDim.x - 1 - threadIdx.x;
    while (*turn != me) {
    }
    order[me] = threadIdx.x;
    __threadfence();
    *turn = me + 1;
}

// Transfers between accounts, each with a lock of its own, taken in the order of their numbers.
__global__ void transfer(int *locks, volatile int *accounts, int count, int rounds) {
    unsigned int state = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u + 12345u;
    for (int round = 0; round < rounds; round++) {
        state = state * 1664525u + 1013904223u;
        int from = (state >> 8) % count, to = (state >> 20) % count;
        if (from == to) continue;
        int first = min(from, to), second = max(from, to);
        acquire(&locks[first]);
        acquire(&locks[second]);
        int amount = accounts[from] / 4;
        accounts[from] = accounts[from] - amount;
        accounts[to] = accounts[to] + amount;
        release(&locks[second]);
        release(&locks[first]);
    }
}

int main() {
    const int threads = 4 * 64;
    accumulate<<<4, 64>>>();
    CHECK(cudaGetLastError());
    unsigned long long sum, expected = 0;
    int clashes;
    CHECK(cudaMemcpyFromSymbol(&sum, protectedSum, sizeof sum));
    CHECK(cudaMemcpyFromSymbol(&clashes, conflicts, sizeof clashes));
    for (int i = 0; i < threads; i++) expected = expected * 3 % 1000003 + 1;
    expect(sum == expected, "sum %llu, expected %llu", sum, expected);
    expect(clashes == 0, "%d threads met another one inside", clashes);

    int *turn = upload(std::vector<int>{0}), *order = blank<int>(64);
    relay<<<1, 64>>>(turn, order);
    CHECK(cudaGetLastError());
    std::vector<int> lanes = download(order, 64);
    for (int i = 0; i < 64; i++) expect(lanes[i] == 63 - i, "place %d of the relay: %d", i, lanes[i]);

    const int accounts = 13, start = 100000;
    int *locks = upload(std::vector<int>(accounts, 0)), *balances = upload(std::vector<int>(accounts, start));
    transfer<<<6, 64>>>(locks, balances, accounts, 4);
    CHECK(cudaGetLastError());
    long total = 0;
    bool moved = false;
    for (int balance : download(balances, accounts)) {
        total += balance;
        moved |= balance != start;
        expect(balance >= 0, "balance %d", balance);
    }
    expect(total == static_cast<long>(accounts) * start && moved, "total %ld", total);
    std::printf("spinlock sum=%llu total=%ld\n", sum, total);
    return verdict();
}
