// Arithmetic in half precision, single and packed: every sum and product is checked against the exact result, rounded
// once on the host by bits.
#include <cuda_fp16.h>

#include "check.h"

const int OPERATIONS = 10;

__global__ void arithmetic(const half *a, const half *b, const half *c, half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    half *mine = out + i * OPERATIONS;
    mine[0] = __hadd(a[i], b[i]);
    mine[1] = __hsub(a[i], b[i]);
    mine[2] = __hmul(a[i], b[i]);
    mine[3] = __hfma(a[i], b[i], c[i]);
    mine[4] = __hmax(a[i], b[i]);
    mine[5] = __hmin(a[i], b[i]);
    mine[6] = __hneg(a[i]);
    mine[7] = __habs(b[i]);
    mine[8] = __hlt(a[i], b[i]) ? __float2half(1.0f) : __float2half(0.0f);
    mine[9] = __int2half_rn(__half2int_rz(c[i]));
}

__global__ void packed(const half2 *a, const half2 *b, half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    half2 x = a[i], y = b[i];
    out[3 * i] = __hfma2(x, y, __halves2half2(__high2half(x), __low2half(y)));
    out[3 * i + 1] = __hadd2(__lowhigh2highlow(x), y);
    out[3 * i + 2] = __hmul2_sat(x, y);
}

// The nearest half, ties to even, by arithmetic on the number alone.  Long doubles have 64 bits, which hold x * y + z
// exactly: products are multiples of 2^-48 and nothing here reaches 2^16 without overflowing.
double toHalf(long double x) {
    if (x == 0) return static_cast<double>(x);
    int exponent;
    std::frexp(x, &exponent);
    int unit = (exponent < -13 ? -13 : exponent) - 11;  // the last place of an 11-bit significand, or of a subnormal
    double rounded = static_cast<double>(std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit));
    return std::fabs(rounded) > 65504 ? std::copysign(INFINITY, rounded) : rounded;
}

half randomHalf(Random &random) {
    // All signs and exponents from subnormal to thousands.
    double size = std::ldexp(1 + random.unit(), static_cast<int>(random.below(30)) - 18);
    return __float2half(static_cast<float>(random.below(2) ? size : -size));
}

int main() {
    const int n = 3000;
    Random random;
    std::vector<half> a(n), b(n), c(n);
    for (int i = 0; i < n; i++) {
        a[i] = randomHalf(random);
        b[i] = i % 11 == 0 ? a[i] : randomHalf(random);
        c[i] = randomHalf(random);
        if (i % 7 == 3) {
            // A product half-way between two numbers, and an addend far below that decides: 3 * odd has twelve bits.
            double odd = 1025 + 2 * random.below(170), tiny = random.below(2) ? 0x1p-24 : -0x1p-24;
            a[i] = __float2half(static_cast<float>(std::ldexp(odd, -static_cast<int>(random.below(8)))));
            b[i] = __float2half(random.below(2) ? 3.0f : -0.75f);
            c[i] = __float2half(static_cast<float>(tiny));
        }
    }
    half *da = upload(a), *db = upload(b), *out = blank<half>(n * OPERATIONS);
    arithmetic<<<(n + 127) / 128, 128>>>(da, db, upload(c), out, n);
    CHECK(cudaGetLastError());
    std::vector<half> found = download(out, n * OPERATIONS);
    for (int i = 0; i < n; i++) {
        double x = __half2float(a[i]), y = __half2float(b[i]), z = __half2float(c[i]);
        long double fused = static_cast<long double>(x) * y + z;
        long double expected[OPERATIONS] = {x + y, x - y, x * y, fused, std::fmax(x, y), std::fmin(x, y), -x, std::fabs(y),
                                       x < y ? 1.0 : 0.0, std::trunc(z)};
        for (int k = 0; k < OPERATIONS; k++) {
            double actual = __half2float(found[i * OPERATIONS + k]), rounded = toHalf(expected[k]);
            expect(actual == rounded, "operation %d of %.9g %.9g %.9g: %.9g, expected %.9g", k, x, y, z, actual, rounded);
        }
    }

    half2 *pairs = blank<half2>(n / 2 * 3);
    packed<<<(n / 2 + 63) / 64, 64>>>(reinterpret_cast<half2 *>(da), reinterpret_cast<half2 *>(db), pairs, n / 2);
    CHECK(cudaGetLastError());
    std::vector<half2> packedFound = download(pairs, n / 2 * 3);
    for (int i = 0; i < n / 2; i++) {
        double x[2] = {__half2float(a[2 * i]), __half2float(a[2 * i + 1])};
        double y[2] = {__half2float(b[2 * i]), __half2float(b[2 * i + 1])};
        for (int k = 0; k < 2; k++) {
            long double addend = k == 0 ? x[1] : y[0];
            double product = toHalf(x[k] * y[k]);
            double expected[3] = {toHalf(static_cast<long double>(x[k]) * y[k] + addend),
                                  toHalf(x[1 - k] + y[k]), product < 0 ? 0 : product > 1 ? 1 : product};
            for (int operation = 0; operation < 3; operation++) {
                half2 pair = packedFound[3 * i + operation];
                double actual = __half2float(k == 0 ? __low2half(pair) : __high2half(pair));
                expect(actual == expected[operation], "packed %d, half %d of %d: %.9g, expected %.9g", operation, k, i, actual,
                       expected[operation]);
            }
        }
    }
    std::printf("half n=%d a[0]*b[1]=%g\n", n, __half2float(a[0]) * __half2float(b[1]));
    return verdict();
}
