// Bitonic sort: small strides in shared memory, large ones in global memory.
#include <algorithm>

#include "check.h"

const int BLOCK = 512, SPAN = 2 * BLOCK;

__device__ void order(int &low, int &high, bool ascending) {
    if ((low > high) == ascending) {
        int other = low;
        low = high;
        high = other;
    }
}

// Merges with strides below SPAN; sorts each span from scratch where `size` starts at 2.
__global__ void sortShared(int *data, unsigned int fromSize, unsigned int toSize) {
    __shared__ int span[SPAN];
    unsigned int base = blockIdx.x * SPAN, t = threadIdx.x;
    span[t] = data[base + t];
    span[t + BLOCK] = data[base + t + BLOCK];
    for (unsigned int size = fromSize; size <= toSize; size *= 2) {
        for (unsigned int stride = min(size, static_cast<unsigned int>(SPAN)) / 2; stride > 0; stride /= 2) {
            __syncthreads();
            unsigned int i = 2 * t - (t & (stride - 1));
            order(span[i], span[i + stride], ((base + i) & size) == 0);
        }
    }
    __syncthreads();
    data[base + t] = span[t];
    data[base + t + BLOCK] = span[t + BLOCK];
}

__global__ void mergeGlobal(int *data, unsigned int size, unsigned int stride) {
    unsigned int t = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int i = 2 * t - (t & (stride - 1));
    order(data[i], data[i + stride], (i & size) == 0);
}

int main() {
    const unsigned int n = 1 << 16;
    Random random;
    std::vector<int> values(n);
    for (int &value : values) value = static_cast<int>(random.next()) / 7;
    int *data = upload(values);

    int blocks = n / SPAN, launches = 1;
    sortShared<<<blocks, BLOCK>>>(data, 2, SPAN);
    for (unsigned int size = 2 * SPAN; size <= n; size *= 2) {
        for (unsigned int stride = size / 2; stride >= SPAN; stride /= 2, launches++)
            mergeGlobal<<<blocks, BLOCK>>>(data, size, stride);
        sortShared<<<blocks, BLOCK>>>(data, size, size);
        launches++;
    }
    CHECK(cudaGetLastError());

    std::vector<int> found = download(data, n);
    std::sort(values.begin(), values.end());
    for (unsigned int i = 0; i < n; i++) expect(found[i] == values[i], "%u: %d, expected %d", i, found[i], values[i]);
    std::printf("bitonic n=%u launches=%d least=%d greatest=%d\n", n, launches, found.front(), found.back());
    return verdict();
}
