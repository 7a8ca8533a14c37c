// Prefix sums in one pass by decoupled look-back (Merrill and Garland, 2016): a block publishes the sum of its tile, then
// walks back over its predecessors until it meets one whose whole prefix is known.  It relies on nothing but this: a
// block that has taken a ticket runs on.
#include "check.h"

const int BLOCK = 128, ITEMS = 4, TILE = BLOCK * ITEMS;

// A tile's state is one 64-bit word, so that flag and value become visible together.
enum : unsigned long long { NOTHING = 0, AGGREGATE = 1ull << 32, PREFIX = 2ull << 32 };

__device__ unsigned int inclusiveWarpScan(unsigned int value, int lane) {
    for (int offset = 1; offset < 32; offset *= 2) {
        unsigned int other = __shfl_up_sync(0xffffffffu, value, offset);
        if (lane >= offset) value += other;
    }
    return value;
}

// The sum of everything before the tile, found by one warp that looks at 32 predecessors at a time.
__device__ unsigned int lookBack(volatile unsigned long long *states, int tile, int lane) {
    unsigned int sum = 0;
    for (int end = tile; end > 0; end -= 32) {
        int predecessor = end - 1 - lane;
        unsigned long long state = PREFIX;
        if (predecessor >= 0) {
            do state = states[predecessor];
            while ((state >> 32) == 0);
        }
        __syncwarp();
        unsigned int complete = __ballot_sync(0xffffffffu, (state & PREFIX) != 0);
        // Lanes up to the nearest complete predecessor count.
        int last = complete == 0 ? 31 : __ffs(complete) - 1;
        unsigned int value = lane <= last ? static_cast<unsigned int>(state) : 0;
        for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
        sum += value;
        if (complete != 0) break;
    }
    return sum;
}

__global__ void scan(const unsigned int *in, unsigned int *out, int n, volatile unsigned long long *states,
                     unsigned int *ticket) {
    __shared__ int sharedTile;
    __shared__ unsigned int warpSums[BLOCK / 32], before;
    if (threadIdx.x == 0) sharedTile = atomicAdd(ticket, 1u);
    __syncthreads();
    int tile = sharedTile, lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    int first = tile * TILE + threadIdx.x * ITEMS;
    unsigned int items[ITEMS], sum = 0;
    for (int k = 0; k < ITEMS; k++) {
        items[k] = first + k < n ? in[first + k] : 0;
        sum += items[k];
    }
    unsigned int inclusive = inclusiveWarpScan(sum, lane);
    if (lane == 31) warpSums[warp] = inclusive;
    __syncthreads();
    unsigned int offset = 0, aggregate = 0;
    for (int w = 0; w < BLOCK / 32; w++) {
        if (w < warp) offset += warpSums[w];
        aggregate += warpSums[w];
    }

    if (warp == 0) {
        if (lane == 0) states[tile] = (tile == 0 ? PREFIX : AGGREGATE) | aggregate;
        unsigned int prefix = lookBack(states, tile, lane);
        if (lane == 0) {
            states[tile] = PREFIX | (prefix + aggregate);
            before = prefix;
        }
    }
    __syncthreads();
    unsigned int running = before + offset + inclusive - sum;
    for (int k = 0; k < ITEMS; k++) {
        running += items[k];
        if (first + k < n) out[first + k] = running;
    }
}

int main() {
    for (int n : {1, TILE, 70000, 500000}) {
        Random random;
        std::vector<unsigned int> in(n);
        for (unsigned int &value : in) value = random.next();
        int tiles = (n + TILE - 1) / TILE;
        unsigned int *device = upload(in), *out = blank<unsigned int>(n);
        unsigned long long *states = upload(std::vector<unsigned long long>(tiles, NOTHING));
        unsigned int *ticket = upload(std::vector<unsigned int>{0});
        scan<<<tiles, BLOCK>>>(device, out, n, states, ticket);
        CHECK(cudaGetLastError());
        std::vector<unsigned int> found = download(out, n);
        unsigned int sum = 0;
        for (int i = 0; i < n; i++) {
            sum += in[i];
            expect(found[i] == sum, "n=%d, element %d: %u, expected %u", n, i, found[i], sum);
        }
        std::printf("lookback n=%d tiles=%d last=%u\n", n, tiles, sum);
    }
    return verdict();
}
