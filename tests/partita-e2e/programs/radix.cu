// Radix sort of keys with values, least significant digit first, stable: histogram, scan, scatter for four bits a pass.
#include <algorithm>
#include <numeric>

#include "check.h"

const int BLOCK = 256, DIGITS = 16;

__global__ void countDigits(const uint32_t *keys, int n, int shift, uint32_t *counts) {
    __shared__ uint32_t local[DIGITS];
    if (threadIdx.x < DIGITS) local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&local[keys[i] >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    // Digit-major, so that one scan over all gives each block's place for each digit.
    if (threadIdx.x < DIGITS) counts[threadIdx.x * gridDim.x + blockIdx.x] = local[threadIdx.x];
}

__global__ void scanCounts(uint32_t *counts, int n) {
    __shared__ uint32_t sums[1024];
    int each = (n + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
    uint32_t sum = 0;
    for (int i = first; i < min(first + each, n); i++) sum += counts[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int offset = 1; offset < blockDim.x; offset *= 2) {
        uint32_t other = threadIdx.x >= offset ? sums[threadIdx.x - offset] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    uint32_t running = sums[threadIdx.x] - sum;
    for (int i = first; i < min(first + each, n); i++) {
        uint32_t count = counts[i];
        counts[i] = running;
        running += count;
    }
}

__global__ void scatter(const uint32_t *keys, const uint32_t *values, int n, int shift, const uint32_t *places,
                        uint32_t *keysOut, uint32_t *valuesOut) {
    __shared__ uint32_t perWarp[BLOCK / 32][DIGITS];
    int i = blockIdx.x * BLOCK + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int k = threadIdx.x; k < BLOCK / 32 * DIGITS; k += BLOCK) (&perWarp[0][0])[k] = 0;
    __syncthreads();
    uint32_t key = i < n ? keys[i] : 0, digit = key >> shift & (DIGITS - 1);
    // Lanes of the same digit, found bit by bit.
    unsigned int peers = __ballot_sync(0xffffffffu, i < n);
    for (int bit = 0; bit < 4; bit++) {
        unsigned int set = __ballot_sync(0xffffffffu, digit >> bit & 1);
        peers &= digit >> bit & 1 ? set : ~set;
    }
    uint32_t rank = __popc(peers & ((1u << lane) - 1));
    if (i < n && rank == 0) perWarp[warp][digit] = __popc(peers);
    __syncthreads();
    if (i < n) {
        for (int w = 0; w < warp; w++) rank += perWarp[w][digit];
        uint32_t place = places[digit * gridDim.x + blockIdx.x] + rank;
        keysOut[place] = key;
        valuesOut[place] = values[i];
    }
}

int main() {
    const int n = 50001, blocks = (n + BLOCK - 1) / BLOCK;
    Random random;
    std::vector<uint32_t> keys(n), values(n);
    for (int i = 0; i < n; i++) keys[i] = i % 3 == 0 ? random.below(100) : random.next();
    std::iota(values.begin(), values.end(), 0u);

    uint32_t *keysIn = upload(keys), *valuesIn = upload(values);
    uint32_t *keysOut = blank<uint32_t>(n), *valuesOut = blank<uint32_t>(n);
    uint32_t *counts = blank<uint32_t>(blocks * DIGITS);
    for (int shift = 0; shift < 32; shift += 4) {
        countDigits<<<blocks, BLOCK>>>(keysIn, n, shift, counts);
        scanCounts<<<1, 1024>>>(counts, blocks * DIGITS);
        scatter<<<blocks, BLOCK>>>(keysIn, valuesIn, n, shift, counts, keysOut, valuesOut);
        std::swap(keysIn, keysOut);
        std::swap(valuesIn, valuesOut);
    }
    CHECK(cudaGetLastError());

    std::vector<uint32_t> sortedKeys = download(keysIn, n), sortedValues = download(valuesIn, n);
    std::stable_sort(values.begin(), values.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
    for (int i = 0; i < n; i++) {
        expect(sortedValues[i] == values[i] && sortedKeys[i] == keys[values[i]], "%d: key %u value %u, expected %u %u", i,
               sortedKeys[i], sortedValues[i], keys[values[i]], values[i]);
    }
    std::printf("radix n=%d first=%u last=%u\n", n, sortedKeys.front(), sortedKeys.back());
    return verdict();
}
