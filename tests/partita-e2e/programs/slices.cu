// A function ends threads, so the kernel can be neither worker nor ticket and runs in slices.
// Usage: slices [BLOCKS [ROUNDS [held]]]
// `held`: the launch computes the blocks again and again, and ends when standard input ends.
#include "check.h"
#include "held.h"

__host__ __device__ inline unsigned step(unsigned value) { return value * 1664525u + 1013904223u; }

__device__ __noinline__ void leave_behind(unsigned thread, unsigned threads) {
    if (thread >= threads) asm volatile("exit;");
}

// Block b computes what block b mod `blocks` does; later rounds return when it is enough. The last threads of a block have
// nothing to do.
__global__ void slices(unsigned *out, int rounds, unsigned blocks, unsigned threads, const volatile int *enough) {
    if (blockIdx.x >= blocks && *enough) return;
    leave_behind(threadIdx.x, threads);
    unsigned i = blockIdx.x % blocks * blockDim.x + threadIdx.x, value = i;
    for (int round = 0; round < rounds; round++) value = step(value);
    out[i] = value;
}

int main(int argc, char **argv) {
    int blocks = argc > 1 ? std::atoi(argv[1]) : 3000, rounds = argc > 2 ? std::atoi(argv[2]) : 20;
    const int block = 32, threads = 25;
    int n = blocks * block;
    unsigned *out = blank<unsigned>(n);
    std::printf("slices blocks=%d\n", blocks);
    std::fflush(stdout);
    bool held = argc > 3 && std::strcmp(argv[3], "held") == 0;
    Hold hold;
    if (held) {
        CHECK(cudaHostAlloc(&hold.enough, sizeof(int), cudaHostAllocMapped));
        hold.begin();
    }
    // A block of a held launch takes an SM, so that a slice is little work for the emulator.
    slices<<<held ? HELD_BLOCKS : blocks, block, held ? 40 << 10 : 0>>>(out, rounds, blocks, threads, hold.enough);
    CHECK(cudaGetLastError());
    std::vector<unsigned> found = download(out, n);
    for (int b = 0; b < blocks; b++) {
        unsigned i = b * block + b % threads, wanted = i;
        for (int round = 0; round < rounds; round++) wanted = step(wanted);
        expect(found[i] == wanted, "%u: %x, expected %x", i, found[i], wanted);
    }
    return verdict();
}
