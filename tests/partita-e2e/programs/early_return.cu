// Threads that return before a barrier or a shuffle that the others reach: whole warps, parts of warps, whole blocks.
#include "check.h"

const int BLOCK = 192;

// Threads beyond n return at once; the rest reverses its block's part through shared memory.
__global__ void reverse(const int *in, int *out, int n) {
    __shared__ int part[BLOCK];
    int first = blockIdx.x * BLOCK, i = first + threadIdx.x;
    if (i >= n) return;
    part[threadIdx.x] = in[i];
    __syncthreads();
    int size = min(BLOCK, n - first);
    out[i] = part[size - 1 - threadIdx.x];
}

// In each round another set of threads leaves; who stays sees what all others of the round wrote.
__global__ void shrink(int *out, const int *lives) {
    __shared__ int alive[BLOCK];
    __shared__ int total;
    int life = lives[blockIdx.x * BLOCK + threadIdx.x], sum = 0;
    alive[threadIdx.x] = 0;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    for (int round = 0;; round++) {
        if (round == life) {
            alive[threadIdx.x] = 0;
            out[blockIdx.x * BLOCK + threadIdx.x] = sum;
            return;
        }
        alive[threadIdx.x] = round + 1;
        atomicAdd(&total, 1);
        __syncthreads();
        if (round % 2 == 0) sum += total;
        for (int k = 0; k < 3; k++) sum += alive[(threadIdx.x + 61 * k) % BLOCK] == round + 1 ? 1 << 16 : 0;
        __syncthreads();
    }
}

// A guard for the whole block, before any barrier.
__global__ void someBlocks(int *out) {
    __shared__ int value;
    if (blockIdx.x % 3 == 1) return;
    if (threadIdx.x == 0) value = blockIdx.x;
    __syncthreads();
    atomicAdd(&out[blockIdx.x], value);
}

int main() {
    for (int n : {1, 100, BLOCK, BLOCK + 1, 10007}) {
        std::vector<int> in(n);
        for (int i = 0; i < n; i++) in[i] = i * 3 + 1;
        int *out = blank<int>(n), blocks = (n + BLOCK - 1) / BLOCK;
        reverse<<<blocks, BLOCK>>>(upload(in), out, n);
        CHECK(cudaGetLastError());
        std::vector<int> found = download(out, n);
        for (int i = 0; i < n; i++) {
            int first = i / BLOCK * BLOCK, size = n - first < BLOCK ? n - first : BLOCK;
            expect(found[i] == in[first + size - 1 - (i - first)], "reverse n=%d, %d: %d", n, i, found[i]);
        }
    }

    const int blocks = 20, n = blocks * BLOCK;
    Random random;
    std::vector<int> lives(n);
    for (int i = 0; i < n; i++) lives[i] = i / BLOCK % 2 == 0 ? static_cast<int>(random.below(9)) : i % BLOCK / 32;
    int *out = blank<int>(n);
    shrink<<<blocks, BLOCK>>>(out, upload(lives));
    CHECK(cudaGetLastError());
    std::vector<int> found = download(out, n);
    for (int b = 0; b < blocks; b++) {
        const int *life = &lives[b * BLOCK];
        for (int t = 0; t < BLOCK; t++) {
            int sum = 0, total = 0;
            for (int round = 0; round < life[t]; round++) {
                for (int other = 0; other < BLOCK; other++) total += life[other] > round;
                if (round % 2 == 0) sum += total;
                for (int k = 0; k < 3; k++) sum += life[(t + 61 * k) % BLOCK] > round ? 1 << 16 : 0;
            }
            expect(found[b * BLOCK + t] == sum, "shrink block %d thread %d: %x, expected %x", b, t, found[b * BLOCK + t], sum);
        }
    }

    int *counts = upload(std::vector<int>(30, 0));
    someBlocks<<<30, 96>>>(counts);
    CHECK(cudaGetLastError());
    std::vector<int> sums = download(counts, 30);
    for (int b = 0; b < 30; b++) expect(sums[b] == (b % 3 == 1 ? 0 : 96 * b), "block %d: %d", b, sums[b]);
    std::printf("early_return shrink0=%x\n", found[0]);
    return verdict();
}
