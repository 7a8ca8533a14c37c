// Single precision: directed rounding, division and roots to the last bit, special values, the mathematical library and
// the fast functions within their stated errors.
#include <cfenv>

#include "check.h"

const int EXACT = 13, LIBRARY = 15, FAST = 7;

__global__ void exactly(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], *mine = out + EXACT * i;
    mine[0] = __fadd_ru(x, y);
    mine[1] = __fmul_rd(x, y);
    mine[2] = x / y;
    mine[3] = __fdiv_rz(x, y);
    mine[4] = sqrtf(fabsf(x));
    mine[5] = __fsqrt_ru(fabsf(y));
    mine[6] = __frcp_rn(y);
    mine[7] = fmaf(x, y, -y);
    mine[8] = fmodf(x, y);
    mine[9] = rintf(x);
    mine[10] = truncf(y) + floorf(x) + ceilf(x);
    mine[11] = __saturatef(x);
    mine[12] = copysignf(fminf(x, y), fmaxf(x, y));
}

__global__ void library(const float *a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], *mine = out + LIBRARY * i;
    mine[0] = expf(x);
    mine[1] = logf(fabsf(x));
    mine[2] = sinf(x);
    mine[3] = cosf(x);
    mine[4] = tanf(x);
    mine[5] = atanf(x);
    mine[6] = asinf(x / 16);
    mine[7] = tanhf(x);
    mine[8] = cbrtf(x);
    mine[9] = powf(fabsf(x), 1.7f);
    mine[10] = erff(x);
    mine[11] = log10f(fabsf(x) + 2);
    mine[12] = rsqrtf(fabsf(x));
    mine[13] = atan2f(x, 3.0f);
    mine[14] = sinf(x * 100000.0f);
}

__global__ void fast(const float *a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], *mine = out + FAST * i;
    mine[0] = __expf(x);
    mine[1] = __logf(fabsf(x) + 2);
    mine[2] = __sinf(x / 4);
    mine[3] = __cosf(x / 4);
    mine[4] = __fdividef(x, 3.0f);
    mine[5] = exp2f(x);
    mine[6] = __powf(fabsf(x) + 1, 1.5f);
}

// What must come out of special operands, each a pair of one function and its result.
__global__ void special(int *wrong) {
    volatile float zero = 0, infinity = INFINITY, tiny = 0x1p-149f, nan = NAN;
    int bit = 1;
    auto check = [&](bool holds) {
        if (!holds) *wrong |= bit;
        bit *= 2;
    };
    check(1 / zero == INFINITY);
    check(-1 / zero == -INFINITY);
    check(isnan(zero / zero));
    check(isnan(infinity - infinity));
    check(tiny > 0 && tiny * 0.5f == 0 && tiny + tiny == 0x1p-148f);
    check(fminf(nan, 1.0f) == 1.0f && fmaxf(2.0f, nan) == 2.0f);
    check(!(nan < 1.0f) && !(nan > 1.0f) && nan != nan);
    check(isnan(sqrtf(-1.0f - zero)) && sqrtf(-zero) == 0 && signbit(sqrtf(-zero)));
    check(expf(infinity) == INFINITY && expf(-infinity) == 0 && logf(zero) == -INFINITY);
    check(static_cast<int>(infinity) == INT_MAX && static_cast<int>(-infinity) == INT_MIN);
    check(static_cast<int>(nan) == 0 && static_cast<unsigned int>(-1.5f - zero) == 0);
    check(__float2int_ru(1.1f + zero) == 2 && __float2int_rd(-1.1f - zero) == -2 && __float2int_rn(2.5f + zero) == 2);
}

template <class Function>
float rounded(int mode, Function function) {
    std::fesetround(mode);
    volatile float result = function();
    std::fesetround(FE_TONEAREST);
    return result;
}

int main() {
    const int n = 3000;
    Random random;
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; i++) {
        a[i] = (random.unit() - 0.5f) * 20;
        b[i] = (random.unit() + 0.001f) * (i % 2 ? 3.0f : -3.0f);
        if (i % 50 == 0) b[i] *= 0x1p-130f;  // subnormal
    }
    float *da = upload(a), *out = blank<float>(EXACT * n);
    exactly<<<(n + 63) / 64, 64>>>(da, upload(b), out, n);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(out, EXACT * n);
    for (int i = 0; i < n; i++) {
        volatile float x = a[i], y = b[i];
        float least = x < y ? x : y, greatest = x < y ? y : x;
        float expected[EXACT] = {rounded(FE_UPWARD, [&] { return x + y; }),
                                 rounded(FE_DOWNWARD, [&] { return x * y; }),
                                 x / y,
                                 rounded(FE_TOWARDZERO, [&] { return x / y; }),
                                 std::sqrt(std::fabs(x)),
                                 rounded(FE_UPWARD, [&] { return std::sqrt(std::fabs(y)); }),
                                 1 / y,
                                 std::fma(x, y, -y),
                                 std::fmod(x, y),
                                 std::rint(x),
                                 std::trunc(y) + std::floor(x) + std::ceil(x),
                                 x < 0 ? 0.0f : x > 1 ? 1.0f : x,
                                 std::copysign(least, greatest)};
        for (int k = 0; k < EXACT; k++)
            expect(found[EXACT * i + k] == expected[k], "operation %d of %.9g %.9g: %.9g, expected %.9g", k, x, y,
                   found[EXACT * i + k], expected[k]);
    }

    float *values = blank<float>(LIBRARY * n);
    library<<<(n + 63) / 64, 64>>>(da, values, n);
    CHECK(cudaGetLastError());
    found = download(values, LIBRARY * n);
    // Errors in units of the last place from the table in the CUDA Programming Guide, plus half for rounding ours.
    const double ulps[LIBRARY] = {2.5, 1.5, 2.5, 2.5, 4.5, 2.5, 3.5, 2.5, 1.5, 4.5, 2.5, 2.5, 2.5, 3.5, 2.5};
    for (int i = 0; i < n; i++) {
        double x = a[i];
        double expected[LIBRARY] = {std::exp(x), std::log(std::fabs(x)), std::sin(x), std::cos(x), std::tan(x), std::atan(x),
                                    std::asin(x / 16), std::tanh(x), std::cbrt(x),
                                    std::pow(std::fabs(x), static_cast<double>(1.7f)), std::erf(x),
                                    std::log10(static_cast<double>(std::fabs(a[i]) + 2)), 1 / std::sqrt(std::fabs(x)),
                                    std::atan2(x, 3.0), std::sin(static_cast<double>(a[i] * 100000.0f))};
        for (int k = 0; k < LIBRARY; k++) {
            float near = std::fabs(static_cast<float>(expected[k]));
            double unit = std::nextafter(near, INFINITY) - near;
            expect(std::fabs(found[LIBRARY * i + k] - expected[k]) <= ulps[k] * unit,
                   "function %d of %.9g: %.9g, expected %.9g", k, x, found[LIBRARY * i + k], expected[k]);
        }
    }

    fast<<<(n + 63) / 64, 64>>>(da, values, n);
    CHECK(cudaGetLastError());
    found = download(values, FAST * n);
    for (int i = 0; i < n; i++) {
        double x = a[i], shifted = std::fabs(a[i]) + 2, base = std::fabs(a[i]) + 1;
        double expected[FAST] = {std::exp(x), std::log(shifted), std::sin(x / 4), std::cos(x / 4), x / 3, std::exp2(x),
                                 std::pow(base, 1.5)};
        // The same guide: 2 + |1.173 x| ulp of exp, absolute 2^-21 of sine and cosine between -pi and pi, and so on.
        double e = 0x1p-23;
        double tolerance[FAST] = {expected[0] * e * (2 + 1.2 * std::fabs(x)), 4 * e * expected[1], 0x1p-21, 0x1p-21,
                                  2 * e * std::fabs(expected[4]), 3 * e * expected[5], 32 * e * expected[6]};
        for (int k = 0; k < FAST; k++)
            expect(std::fabs(found[FAST * i + k] - expected[k]) <= tolerance[k], "fast %d of %.9g: %.9g, expected %.9g", k, x,
                   found[FAST * i + k], expected[k]);
    }

    int *wrong = upload(std::vector<int>{0});
    special<<<1, 1>>>(wrong);
    CHECK(cudaGetLastError());
    int bits = download(wrong, 1)[0];
    expect(bits == 0, "special values: bits %x", static_cast<unsigned int>(bits));
    std::printf("floats n=%d functions=%d\n", n, EXACT + LIBRARY + FAST);
    return verdict();
}
