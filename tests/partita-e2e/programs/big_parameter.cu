// Big and oddly aligned parameters passed by value: a struct of nearly 4 KB, small ones with padding, and many at once.
#include "check.h"

struct Big {
    char tag;
    double coefficients[500];
    short tail;
};

struct __align__(16) Aligned {
    float4 vector;
    char letter;
};

struct Three {
    unsigned char bytes[3];
};

struct Empty {};

__global__ void useBig(Big big, double *out) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 500) out[i] = big.coefficients[i] * big.tag + big.tail;
}

__global__ void useMany(char a, Three b, short c, Aligned d, bool e, double f, Empty, int g, Three h, float *out) {
    out[0] = a;
    out[1] = b.bytes[0] * 65536.0f + b.bytes[1] * 256.0f + b.bytes[2];
    out[2] = c;
    out[3] = d.vector.x + d.vector.w;
    out[4] = d.letter;
    out[5] = e ? 1.0f : 0.0f;
    out[6] = static_cast<float>(f);
    out[7] = static_cast<float>(g);
    out[8] = h.bytes[2];
}

// A parameter that the kernel changes is its own copy in every thread.
__global__ void change(Big big, double *out) {
    for (int k = 0; k < 500; k++) big.coefficients[k] += threadIdx.x;
    double sum = 0;
    for (int k = 0; k < 500; k += 50) sum += big.coefficients[(k + threadIdx.x) % 500];
    out[threadIdx.x] = sum;
}

int main() {
    Big big;
    big.tag = 3;
    big.tail = -7;
    for (int i = 0; i < 500; i++) big.coefficients[i] = i * 0.5;
    double *out = blank<double>(500);
    useBig<<<4, 128>>>(big, out);
    CHECK(cudaGetLastError());
    std::vector<double> found = download(out, 500);
    for (int i = 0; i < 500; i++) expect(found[i] == i * 1.5 - 7, "%d: %g", i, found[i]);

    Aligned aligned = {make_float4(1.5f, 0, 0, 2.25f), 'q'};
    float *many = blank<float>(9);
    useMany<<<1, 1>>>(-5, Three{{1, 2, 3}}, -300, aligned, true, 0.125, Empty(), 1 << 20, Three{{7, 8, 9}}, many);
    CHECK(cudaGetLastError());
    float expected[9] = {-5, 66051, -300, 3.75f, 'q', 1, 0.125f, 1048576, 9};
    std::vector<float> values = download(many, 9);
    for (int i = 0; i < 9; i++) expect(values[i] == expected[i], "parameter %d: %g, expected %g", i, values[i], expected[i]);

    change<<<1, 64>>>(big, out);
    CHECK(cudaGetLastError());
    found = download(out, 64);
    for (int t = 0; t < 64; t++) {
        double sum = 0;
        for (int k = 0; k < 500; k += 50) sum += (k + t) % 500 * 0.5 + t;
        expect(found[t] == sum, "thread %d: %g, expected %g", t, found[t], sum);
    }
    std::printf("big_parameter bytes=%zu\n", sizeof(Big));
    return verdict();
}
