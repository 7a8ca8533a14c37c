// Dynamic shared memory: several arrays of different types in one allotment, none at all, and more than 48 KB, which a
// kernel must ask for.
#include "check.h"

extern __shared__ __align__(16) unsigned char memory[];

// Reverses doubles and counts bytes in the same allotment.
__global__ void mixed(const double *in, double *out, const unsigned char *bytes, int *counts, int n) {
    double *values = reinterpret_cast<double *>(memory);
    int *bins = reinterpret_cast<int *>(values + n);
    unsigned char *copy = reinterpret_cast<unsigned char *>(bins + 16);
    int t = threadIdx.x;
    values[t] = in[blockIdx.x * n + t];
    copy[t] = bytes[blockIdx.x * n + t];
    if (t < 16) bins[t] = 0;
    __syncthreads();
    atomicAdd(&bins[copy[n - 1 - t] & 15], 1);
    out[blockIdx.x * n + t] = values[n - 1 - t];
    __syncthreads();
    if (t < 16) counts[blockIdx.x * 16 + t] = bins[t];
}

__global__ void large(int *out, int words) {
    int *data = reinterpret_cast<int *>(memory);
    for (int i = threadIdx.x; i < words; i += blockDim.x) data[i] = i * 3;
    __syncthreads();
    int sum = 0;
    for (int i = threadIdx.x; i < words; i += blockDim.x) sum += data[words - 1 - i];
    atomicAdd(out, sum);
    unsigned int size;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    if (threadIdx.x == 0) out[1] = static_cast<int>(size);
}

int main() {
    Random random;
    const int blocks = 7;
    for (int n : {32, 100, 1024}) {
        std::vector<double> in(blocks * n);
        std::vector<unsigned char> bytes(blocks * n);
        for (double &value : in) value = random.unit();
        for (unsigned char &value : bytes) value = static_cast<unsigned char>(random.below(256));
        double *out = blank<double>(blocks * n);
        int *counts = blank<int>(blocks * 16);
        size_t size = n * sizeof(double) + 16 * sizeof(int) + n;
        mixed<<<blocks, n, size>>>(upload(in), out, upload(bytes), counts, n);
        CHECK(cudaGetLastError());
        std::vector<double> found = download(out, in.size());
        std::vector<int> bins = download(counts, blocks * 16);
        for (int b = 0; b < blocks; b++) {
            int expected[16] = {};
            for (int t = 0; t < n; t++) {
                expected[bytes[b * n + t] & 15]++;
                expect(found[b * n + t] == in[b * n + n - 1 - t], "n=%d block %d thread %d", n, b, t);
            }
            for (int k = 0; k < 16; k++)
                expect(bins[b * 16 + k] == expected[k], "n=%d block %d bin %d: %d, expected %d", n, b, k, bins[b * 16 + k],
                       expected[k]);
        }
    }

    int device, limit;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    int *out = upload(std::vector<int>{0, 0}), size = 60 * 1024, words = size / 4;
    if (limit >= size) {
        large<<<1, 256, size>>>(out, words);
        cudaError_t refused = cudaGetLastError();
        expect(refused == cudaErrorInvalidValue, "without asking: %s", cudaGetErrorName(refused));
        // A launch may ask for itself alone.
        cudaLaunchAttribute mode = {};
        mode.id = cudaLaunchAttributeSharedMemoryMode;
        mode.val.sharedMemoryMode = cudaSharedMemoryModeAllowNonPortable;
        cudaLaunchConfig_t config = {};
        config.gridDim = 1, config.blockDim = 256, config.dynamicSmemBytes = size, config.attrs = &mode, config.numAttrs = 1;
        CHECK(cudaLaunchKernelEx(&config, large, out, words));
        CHECK(cudaMemset(out, 0, 2 * sizeof(int)));
        mode.val.sharedMemoryMode = cudaSharedMemoryModeRequirePortable;
        refused = cudaLaunchKernelEx(&config, large, out, words);
        expect(refused == cudaErrorInvalidValue, "more than portable: %s", cudaGetErrorName(refused));
        cudaGetLastError();
        CHECK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, size));
        large<<<1, 256, size>>>(out, words);
        CHECK(cudaGetLastError());
        std::vector<int> found = download(out, 2);
        int expected = static_cast<int>(3ll * words * (words - 1) / 2);
        expect(found[0] == expected && found[1] == size, "large: %d of %d bytes, expected %d of %d", found[0], found[1],
               expected, size);
    }
    std::printf("dynamic_shared large=%s\n", limit >= size ? "yes" : "no");
    return verdict();
}
