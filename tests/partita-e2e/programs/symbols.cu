// __constant__ and __device__ globals: initialisers, addresses of symbols, copies to and from them, and what one kernel
// leaves for the next.
#include "check.h"

struct Settings {
    int order;
    float weights[5];
    char name[8];
};

__constant__ Settings settings = {3, {1.0f, 0.5f, 0.25f, 0.0f, 0.0f}, "start"};
__constant__ unsigned char table[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
__device__ int counter = 41;
__device__ double matrix[3][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 10}};
__device__ int *counterAddress = &counter;
__device__ float uninitialised[64];
__device__ const char *greeting = "constant strings are globals too";
static __device__ unsigned long long big = 0x0123456789abcdefull;

__global__ void polynomial(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = 0;
    for (int k = settings.order - 1; k >= 0; k--) value = value * x[i] + settings.weights[k];
    y[i] = value;
}

__global__ void bits(unsigned int *out) {
    unsigned int value = threadIdx.x * 2654435761u;
    int sum = 0;
    for (int k = 0; k < 8; k++) sum += table[value >> 4 * k & 15];
    out[threadIdx.x] = sum;
}

__global__ void touch() {
    atomicAdd(counterAddress, 1);
    uninitialised[threadIdx.x] += threadIdx.x;
    if (threadIdx.x < 9) matrix[threadIdx.x / 3][threadIdx.x % 3] *= 2;
    if (threadIdx.x == 0) big += 1;
}

__global__ void length(int *out) {
    int n = 0;
    while (greeting[n] != 0) n++;
    *out = n;
}

int main() {
    const int n = 300;
    std::vector<float> x(n);
    for (int i = 0; i < n; i++) x[i] = i / 64.0f;
    float *dx = upload(x), *dy = blank<float>(n);
    auto check = [&](const Settings &now) {
        polynomial<<<3, 100>>>(dx, dy, n);
        CHECK(cudaGetLastError());
        std::vector<float> y = download(dy, n);
        for (int i = 0; i < n; i++) {
            double expected = 0;
            for (int k = now.order - 1; k >= 0; k--) expected = expected * x[i] + now.weights[k];
            // At most five roundings of positive numbers.
            expect(close(y[i], expected, 1e-6), "order %d at %g: %g, expected %g", now.order, x[i], y[i], expected);
        }
    };
    Settings now;
    CHECK(cudaMemcpyFromSymbol(&now, settings, sizeof now));
    expect(now.order == 3 && now.weights[1] == 0.5f && now.name[0] == 's' && now.name[5] == 0, "initial settings");
    check(now);
    now = {5, {0.125f, 2.0f, 0.0f, 1.5f, 3.0f}, "next"};
    CHECK(cudaMemcpyToSymbol(settings, &now, sizeof now));
    check(now);
    float weight = 7.0f;
    CHECK(cudaMemcpyToSymbol(settings, &weight, sizeof weight, offsetof(Settings, weights) + 2 * sizeof weight));
    now.weights[2] = weight;
    check(now);

    unsigned int *counts = blank<unsigned int>(64);
    bits<<<1, 64>>>(counts);
    std::vector<unsigned int> found = download(counts, 64);
    for (unsigned int i = 0; i < 64; i++)
        expect(found[i] == static_cast<unsigned int>(__builtin_popcount(i * 2654435761u)), "bits of %u: %u", i, found[i]);

    for (int i = 0; i < 3; i++) touch<<<1, 64>>>();
    int count, *address;
    CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    expect(count == 41 + 3 * 64, "counter %d", count);
    CHECK(cudaGetSymbolAddress(reinterpret_cast<void **>(&address), counter));
    int *pointer;
    CHECK(cudaMemcpyFromSymbol(&pointer, counterAddress, sizeof pointer));
    expect(pointer == address, "the pointer %p is not the symbol's address %p", static_cast<void *>(pointer),
           static_cast<void *>(address));
    size_t size;
    CHECK(cudaGetSymbolSize(&size, matrix));
    expect(size == 72, "size %zu", size);
    double m[3][3];
    CHECK(cudaMemcpyFromSymbol(m, matrix, sizeof m));
    expect(m[0][0] == 8 && m[1][2] == 48 && m[2][2] == 80, "matrix %g %g %g", m[0][0], m[1][2], m[2][2]);
    float u[64];
    CHECK(cudaMemcpyFromSymbol(u, uninitialised, sizeof u));
    expect(u[0] == 0 && u[63] == 189, "uninitialised %g %g", u[0], u[63]);
    unsigned long long wide;
    CHECK(cudaMemcpyFromSymbol(&wide, big, sizeof wide));
    expect(wide == 0x0123456789abcdefull + 3, "wide %llx", wide);
    int *characters = blank<int>(1);
    length<<<1, 1>>>(characters);
    expect(download(characters, 1)[0] == 32, "length %d", download(characters, 1)[0]);
    std::printf("symbols counter=%d matrix[2][2]=%g\n", count, m[2][2]);
    return verdict();
}
