// Arithmetic in bfloat16, single and packed: conversions both ways, sums, products and fused sums, rounded once.
// nvcc: -arch=sm_80
#include <cuda_bf16.h>

#include "check.h"

const int OPERATIONS = 7;

__global__ void arithmetic(const float *a, const float *b, const float *c, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 x = __float2bfloat16(a[i]), y = __float2bfloat16_rz(b[i]), z = __float2bfloat16_rn(c[i]);
    float *mine = out + i * OPERATIONS;
    mine[0] = __bfloat162float(x);
    mine[1] = __bfloat162float(y);
    mine[2] = __bfloat162float(__hadd(x, y));
    mine[3] = __bfloat162float(__hmul(x, y));
    mine[4] = __bfloat162float(__hfma(x, y, z));
    __nv_bfloat162 pair = __hsub2(__halves2bfloat162(x, y), __bfloat162bfloat162(z));
    mine[5] = __low2float(pair);
    mine[6] = __high2float(pair);
}

// The nearest bfloat16, ties to even; no subnormals or overflow occur here.
double toBfloat16(long double x) {
    if (x == 0) return 0;
    int exponent;
    std::frexp(x, &exponent);
    return static_cast<double>(std::ldexp(std::nearbyint(std::ldexp(x, 8 - exponent)), exponent - 8));
}

double toBfloat16TowardsZero(double x) {
    int exponent;
    std::frexp(x, &exponent);
    return std::ldexp(std::trunc(std::ldexp(x, 8 - exponent)), exponent - 8);
}

int main() {
    const int n = 4000;
    Random random;
    std::vector<float> a(n), b(n), c(n);
    for (int i = 0; i < n; i++) {
        float *values[3] = {&a[i], &b[i], &c[i]};
        for (float *value : values) {
            double size = std::ldexp(1 + random.unit(), static_cast<int>(random.below(24)) - 12);
            *value = static_cast<float>(random.below(2) ? size : -size);
        }
        if (i % 10 == 0) a[i] = static_cast<float>(toBfloat16TowardsZero(a[i]) * (1 + 0x1p-8));  // often a tie
    }
    float *out = blank<float>(n * OPERATIONS);
    arithmetic<<<(n + 95) / 96, 96>>>(upload(a), upload(b), upload(c), out, n);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(out, n * OPERATIONS);
    for (int i = 0; i < n; i++) {
        double x = toBfloat16(a[i]), y = toBfloat16TowardsZero(b[i]), z = toBfloat16(c[i]);
        // Exponents differ by at most 24 + 24 and significands have 8 bits: long double holds a fused sum exactly.
        long double fused = static_cast<long double>(x) * y + z;
        double expected[OPERATIONS] = {x, y, toBfloat16(x + y), toBfloat16(x * y), toBfloat16(fused), toBfloat16(x - z),
                                       toBfloat16(y - z)};
        for (int k = 0; k < OPERATIONS; k++) {
            double actual = found[i * OPERATIONS + k];
            expect(actual == expected[k], "operation %d of %.9g %.9g %.9g: %.9g, expected %.9g", k, x, y, z, actual,
                   expected[k]);
        }
    }
    std::printf("bfloat16 n=%d first=%g\n", n, found[0]);
    return verdict();
}
