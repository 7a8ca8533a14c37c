// A histogram of bytes: private counts in shared memory, one copy per warp, merged at the end; and one straight to global
// memory, which must agree.
#include "check.h"

const int BINS = 256, BLOCK = 192, WARPS = BLOCK / 32;

__global__ void histogramShared(const uchar4 *data, int n, unsigned int *bins) {
    __shared__ unsigned int counts[WARPS][BINS];
    for (int i = threadIdx.x; i < WARPS * BINS; i += blockDim.x) (&counts[0][0])[i] = 0;
    __syncthreads();
    unsigned int *mine = counts[threadIdx.x / 32];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uchar4 four = data[i];
        atomicAdd(&mine[four.x], 1u);
        atomicAdd(&mine[four.y], 1u);
        atomicAdd(&mine[four.z], 1u);
        atomicAdd(&mine[four.w], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        unsigned int sum = 0;
        for (int w = 0; w < WARPS; w++) sum += counts[w][bin];
        if (sum != 0) atomicAdd(&bins[bin], sum);
    }
}

__global__ void histogramGlobal(const unsigned char *data, int n, unsigned int *bins) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[data[i]], 1u);
}

int main() {
    const int n = 400000;
    Random random;
    std::vector<unsigned char> data(n);
    std::vector<unsigned int> expected(BINS, 0);
    for (int i = 0; i < n; i++) {
        // Skewed: the sum of two dice of 128 sides, and runs of one value, which collide in a warp.
        data[i] = i % 5000 < 500 ? 7 : static_cast<unsigned char>(random.below(128) + random.below(128));
        expected[data[i]]++;
    }
    unsigned char *device = upload(data);
    unsigned int *bins = upload(std::vector<unsigned int>(2 * BINS, 0));
    histogramShared<<<48, BLOCK>>>(reinterpret_cast<uchar4 *>(device), n / 4, bins);
    histogramGlobal<<<(n + 127) / 128, 128>>>(device, n, bins + BINS);
    CHECK(cudaGetLastError());

    std::vector<unsigned int> found = download(bins, 2 * BINS);
    for (int bin = 0; bin < BINS; bin++) {
        expect(found[bin] == expected[bin], "shared, bin %d: %u, expected %u", bin, found[bin], expected[bin]);
        expect(found[BINS + bin] == expected[bin], "global, bin %d: %u, expected %u", bin, found[BINS + bin],
               expected[bin]);
    }
    std::printf("histogram n=%d bin7=%u bin127=%u\n", n, found[7], found[127]);
    return verdict();
}
