// Sums and extremes of an array three ways: a tree in shared memory, warp shuffles, and atomics.
#include "check.h"

const int BLOCK = 256;

__global__ void sumShared(const int *in, int n, long long *sums) {
    __shared__ long long partial[BLOCK];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

template <class T>
__device__ T warpSum(T value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

template <class T>
__global__ void sumShuffle(const T *in, int n, T *total) {
    __shared__ T warps[BLOCK / 32];
    T value = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += in[i];
    value = warpSum(value);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) warps[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = lane < BLOCK / 32 ? warps[lane] : T(0);
        value = warpSum(value);
        if (lane == 0) atomicAdd(total, value);
    }
}

struct Totals {
    unsigned long long sum;
    int least, greatest;
    unsigned int evens;
};

__global__ void totalsAtomic(const int *in, int n, Totals *totals) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&totals->sum, static_cast<unsigned long long>(static_cast<long long>(in[i])));
    atomicMin(&totals->least, in[i]);
    atomicMax(&totals->greatest, in[i]);
    if (in[i] % 2 == 0) atomicAdd(&totals->evens, 1u);
}

int main() {
    const int n = 200003, blocks = (n + BLOCK - 1) / BLOCK;
    Random random;
    std::vector<int> ints(n);
    std::vector<float> floats(n);
    std::vector<double> doubles(n);
    Totals expected = {0, 1 << 30, -(1 << 30), 0};
    long long sum = 0;
    double real = 0;
    for (int i = 0; i < n; i++) {
        ints[i] = static_cast<int>(random.next() % 2000001) - 1000000;
        floats[i] = random.unit();
        doubles[i] = floats[i];
        sum += ints[i];
        real += floats[i];
        expected.least = ints[i] < expected.least ? ints[i] : expected.least;
        expected.greatest = ints[i] > expected.greatest ? ints[i] : expected.greatest;
        expected.evens += ints[i] % 2 == 0;
    }

    int *in = upload(ints);
    long long *sums = blank<long long>(blocks);
    sumShared<<<blocks, BLOCK>>>(in, n, sums);
    CHECK(cudaGetLastError());
    long long total = 0;
    for (long long part : download(sums, blocks)) total += part;
    expect(total == sum, "shared: %lld, expected %lld", total, sum);

    Totals *totals = upload(std::vector<Totals>{{0, 1 << 30, -(1 << 30), 0}});
    totalsAtomic<<<blocks, BLOCK>>>(in, n, totals);
    CHECK(cudaGetLastError());
    Totals found = download(totals, 1)[0];
    expect(static_cast<long long>(found.sum) == sum, "atomic: %lld", static_cast<long long>(found.sum));
    expect(found.least == expected.least && found.greatest == expected.greatest, "extremes %d %d", found.least,
           found.greatest);
    expect(found.evens == expected.evens, "evens %u, expected %u", found.evens, expected.evens);

    unsigned int *intTotal = upload(std::vector<unsigned int>{0});
    sumShuffle<<<40, BLOCK>>>(reinterpret_cast<unsigned int *>(in), n, intTotal);
    float *floatTotal = upload(std::vector<float>{0});
    sumShuffle<<<40, BLOCK>>>(upload(floats), n, floatTotal);
    double *doubleTotal = upload(std::vector<double>{0});
    sumShuffle<<<40, BLOCK>>>(upload(doubles), n, doubleTotal);
    CHECK(cudaGetLastError());
    unsigned int wrapped = download(intTotal, 1)[0];
    expect(wrapped == static_cast<unsigned int>(sum), "shuffle u32: %u", wrapped);
    // About 20 roundings one after another in each thread, 8 in the trees, 40 atomics: 68 * 2^-24 at most, all positive.
    float single = download(floatTotal, 1)[0];
    expect(close(single, real, 5e-6), "shuffle f32: %.9g, expected %.9g", single, real);
    double twice = download(doubleTotal, 1)[0];
    expect(close(twice, real, 1e-13), "shuffle f64: %.17g, expected %.17g", twice, real);

    std::printf("reduce n=%d sum=%lld least=%d greatest=%d evens=%u\n", n, sum, found.least, found.greatest, found.evens);
    return verdict();
}
