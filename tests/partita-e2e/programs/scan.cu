// Prefix sums by Hillis and Steele: each block scans a tile in shared memory, the tiles' sums are scanned in turn and
// added back.  Three levels, so that a million elements need no block to do more than one tile.
#include "check.h"

const int TILE = 512;

__global__ void scanTiles(const uint32_t *in, uint32_t *out, uint32_t *sums, int n) {
    __shared__ uint32_t buffers[2][TILE];
    int i = blockIdx.x * TILE + threadIdx.x, t = threadIdx.x, current = 0;
    buffers[0][t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int offset = 1; offset < TILE; offset *= 2) {
        uint32_t value = buffers[current][t];
        if (t >= offset) value += buffers[current][t - offset];
        buffers[1 - current][t] = value;
        current = 1 - current;
        __syncthreads();
    }
    if (i < n) out[i] = buffers[current][t];
    if (t == TILE - 1) sums[blockIdx.x] = buffers[current][t];
}

__global__ void addOffsets(uint32_t *out, const uint32_t *scannedSums, int n) {
    int i = blockIdx.x * TILE + threadIdx.x;
    if (blockIdx.x > 0 && i < n) out[i] += scannedSums[blockIdx.x - 1];
}

// Scans in place of `out`; `out` and `in` may be the same.
void scan(const uint32_t *in, uint32_t *out, int n) {
    int tiles = (n + TILE - 1) / TILE;
    uint32_t *sums = blank<uint32_t>(tiles);
    scanTiles<<<tiles, TILE>>>(in, out, sums, n);
    CHECK(cudaGetLastError());
    if (tiles > 1) {
        scan(sums, sums, tiles);
        addOffsets<<<tiles, TILE>>>(out, sums, n);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaFree(sums));
}

void run(int n) {
    Random random;
    std::vector<uint32_t> in(n);
    for (uint32_t &value : in) value = random.next();
    uint32_t *device = upload(in), *out = blank<uint32_t>(n);
    scan(device, out, n);
    std::vector<uint32_t> found = download(out, n);
    uint32_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += in[i];
        expect(found[i] == sum, "n=%d, element %d: %u, expected %u", n, i, found[i], sum);
    }
    CHECK(cudaFree(device));
    CHECK(cudaFree(out));
    std::printf("scan n=%d last=%u\n", n, sum);
}

int main() {
    for (int n : {1, 31, 512, 513, 100000, 400000}) run(n);
    return verdict();
}
