// Lanes that leave before the others of their warp exchange values: no worker can run this. Every block takes long enough
// that borders move in mid-kernel.  Usage: leavers [BLOCKS [ROUNDS [held]]]
// `held`: the launch computes the blocks again and again, and ends when standard input ends.
#include "check.h"
#include "held.h"

__host__ __device__ inline unsigned step(unsigned value) { return value * 1664525u + 1013904223u; }

// A lane stays for as many parts as its index allows; who stays adds what the lane behind it had. Block b computes what
// block b mod `blocks` does; later rounds return when it is enough.
__global__ void leavers(unsigned *out, int rounds, unsigned blocks, const volatile int *enough) {
    if (blockIdx.x >= blocks && *enough) return;
    unsigned lane = threadIdx.x % 32, i = blockIdx.x % blocks * blockDim.x + threadIdx.x, value = i;
    for (unsigned part = 0; part < 4; part++) {
        for (int round = 0; round < rounds; round++) value = step(value);
        if (lane >= 32 - 8 * part) {
            out[i] = value;
            return;
        }
        unsigned mask = 0xffffffffu >> (8 * part), next = __shfl_down_sync(mask, value, 1);
        value += mask >> 1 >> lane & 1 ? next : value;
    }
    out[i] = value;
}

// The same for one warp.
static void expected(unsigned first, int rounds, unsigned *out) {
    unsigned value[32];
    for (unsigned lane = 0; lane < 32; lane++) value[lane] = first + lane;
    for (unsigned part = 0; part < 4; part++) {
        unsigned live = part == 0 ? 32 : 32 - 8 * (part - 1), stay = 32 - 8 * part;
        for (unsigned lane = 0; lane < live; lane++) {
            for (int round = 0; round < rounds; round++) value[lane] = step(value[lane]);
        }
        for (unsigned lane = stay; lane < live; lane++) out[lane] = value[lane];
        unsigned before[32];
        for (unsigned lane = 0; lane < 32; lane++) before[lane] = value[lane];
        // The last lane of those that stay has none behind it and takes its own value.
        for (unsigned lane = 0; lane < stay; lane++) value[lane] += before[lane + 1 < stay ? lane + 1 : lane];
    }
    for (unsigned lane = 0; lane < 8; lane++) out[lane] = value[lane];
}

int main(int argc, char **argv) {
    int blocks = argc > 1 ? std::atoi(argv[1]) : 1000, rounds = argc > 2 ? std::atoi(argv[2]) : 200;
    const int block = 256;
    int n = blocks * block;
    unsigned *out = blank<unsigned>(n);
    std::printf("leavers blocks=%d\n", blocks);
    std::fflush(stdout);
    bool held = argc > 3 && std::strcmp(argv[3], "held") == 0;
    Hold hold;
    if (held) {
        CHECK(cudaHostAlloc(&hold.enough, sizeof(int), cudaHostAllocMapped));
        hold.begin();
    }
    leavers<<<held ? HELD_BLOCKS : blocks, block>>>(out, rounds, blocks, hold.enough);
    CHECK(cudaGetLastError());
    std::vector<unsigned> found = download(out, n);
    // The host is slow: it checks one warp of each block.
    for (int b = 0; b < blocks; b++) {
        unsigned wanted[32];
        int first = b * block + b % 8 * 32;
        expected(first, rounds, wanted);
        for (int lane = 0; lane < 32; lane++) {
            expect(found[first + lane] == wanted[lane], "%d: %x, expected %x", first + lane, found[first + lane], wanted[lane]);
        }
    }
    return verdict();
}
