// nvcc: -rdc=true @rdc_part.cu
// Device code in two files: functions, variables, constants and a kernel that are defined in one and used in the other,
// and things of the same name that are private to each.
#include "check.h"

extern __device__ int total;
extern __device__ int table[64];
extern __constant__ float weights[4];
extern __device__ float weigh(float value, int which);
extern __device__ int (*const chosen)(int);
extern __global__ void tally(const int *data, int n);
int hostPart(int *data, int n);

static __device__ int bias = 3;
__device__ int shared_with_part = 100;

static __device__ __noinline__ int twist(int value) { return 2 * value + bias; }

template <class T>
__device__ __noinline__ T common(T value) {
    return value + 1;
}

__global__ void own(int *out, float *weighed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = twist(common(i)) + chosen(i);
    weighed[i] = weigh(static_cast<float>(i), i % 4);
}

int main() {
    const int n = 2000, blocks = (n + 127) / 128;
    int *out = blank<int>(n);
    float *weighed = blank<float>(n);
    own<<<blocks, 128>>>(out, weighed, n);
    CHECK(cudaGetLastError());
    std::vector<int> found = download(out, n);
    std::vector<float> heavy = download(weighed, n);
    const float factor[4] = {0.5f, 2.0f, -1.0f, 8.0f};
    for (int i = 0; i < n; i++) {
        int expected = 2 * (i + 1) + 3 + (i * i + 50);
        expect(found[i] == expected, "own %d: %d, expected %d", i, found[i], expected);
        expect(heavy[i] == i * factor[i % 4], "weigh %d: %g", i, heavy[i]);
    }

    // A kernel and variables of the other file, by their symbols.
    int zero = 0, sum = 0;
    unsigned expected = 0;
    CHECK(cudaMemcpyToSymbol(total, &zero, sizeof zero));
    tally<<<blocks, 128>>>(out, n);
    CHECK(cudaMemcpyFromSymbol(&sum, total, sizeof sum));
    for (int i = 0; i < n; i++) expected += found[i];
    expect(static_cast<unsigned>(sum) == expected, "tally: %d, expected %u", sum, expected);
    int filled[64];
    CHECK(cudaMemcpyFromSymbol(filled, table, sizeof filled));
    for (int i = 0; i < 64; i++) expect(filled[i] == i * 3 + 100, "table %d: %d", i, filled[i]);
    expect(hostPart(out, n) == n, "the other file's launch");
    std::vector<int> twisted = download(out, n);
    for (int i = 0; i < n; i++) expect(twisted[i] == 7 * found[i] + 11, "part %d: %d", i, twisted[i]);
    std::printf("rdc n=%d sum=%d\n", n, sum);
    return verdict();
}
