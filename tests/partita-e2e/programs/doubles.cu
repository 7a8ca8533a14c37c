// Double precision: directed rounding, fused sums, division and roots to the last bit, and the mathematical library
// within its stated error.
#include <cfenv>

#include "check.h"

__global__ void exactly(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i], *mine = out + 12 * i;
    mine[0] = __dadd_rn(x, y);
    mine[1] = __dadd_ru(x, y);
    mine[2] = __dmul_rd(x, y);
    mine[3] = __ddiv_rn(x, y);
    mine[4] = __ddiv_rz(x, y);
    mine[5] = __dsqrt_rn(fabs(x));
    mine[6] = __dsqrt_ru(fabs(y));
    mine[7] = fma(x, y, -x);
    mine[8] = fmod(x, y);
    mine[9] = rint(x * 8);
    mine[10] = static_cast<double>(static_cast<long long>(x * 1e6));
    mine[11] = static_cast<double>(static_cast<float>(x));
}

const int FUNCTIONS = 14;

__global__ void functions(const double *a, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], *mine = out + FUNCTIONS * i;
    mine[0] = exp(x);
    mine[1] = log(fabs(x));
    mine[2] = sin(x);
    mine[3] = cos(x);
    mine[4] = tan(x);
    mine[5] = atan(x);
    mine[6] = sinh(x / 4);
    mine[7] = tanh(x);
    mine[8] = cbrt(x);
    mine[9] = pow(fabs(x), 1.7);
    mine[10] = erf(x);
    mine[11] = log1p(fabs(x));
    mine[12] = hypot(x, 3.0);
    mine[13] = tgamma(fabs(x) / 4 + 0.5);
}

double rounded(int mode, double (*operation)(double, double), double a, double b) {
    std::fesetround(mode);
    volatile double x = a, y = b;
    volatile double result = operation(x, y);
    std::fesetround(FE_TONEAREST);
    return result;
}

int main() {
    const int n = 2000;
    Random random;
    std::vector<double> a(n), b(n);
    for (int i = 0; i < n; i++) {
        uint64_t bits = static_cast<uint64_t>(random.next()) << 32 | random.next();
        a[i] = (static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * 20;
        b[i] = (random.unit() + 0.001) * (i % 2 ? 3 : -3);
    }
    double *da = upload(a), *out = blank<double>(12 * n);
    exactly<<<(n + 63) / 64, 64>>>(da, upload(b), out, n);
    CHECK(cudaGetLastError());
    std::vector<double> found = download(out, 12 * n);
    auto add = [](double x, double y) { volatile double r = x + y; return static_cast<double>(r); };
    auto multiply = [](double x, double y) { volatile double r = x * y; return static_cast<double>(r); };
    auto divide = [](double x, double y) { volatile double r = x / y; return static_cast<double>(r); };
    auto root = [](double x, double) { volatile double r = std::sqrt(x); return static_cast<double>(r); };
    for (int i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        double expected[12] = {x + y,
                               rounded(FE_UPWARD, add, x, y),
                               rounded(FE_DOWNWARD, multiply, x, y),
                               x / y,
                               rounded(FE_TOWARDZERO, divide, x, y),
                               std::sqrt(std::fabs(x)),
                               rounded(FE_UPWARD, root, std::fabs(y), 0),
                               std::fma(x, y, -x),
                               std::fmod(x, y),
                               std::rint(x * 8),
                               static_cast<double>(static_cast<long long>(x * 1e6)),
                               static_cast<double>(static_cast<float>(x))};
        for (int k = 0; k < 12; k++)
            expect(found[12 * i + k] == expected[k], "operation %d of %.17g %.17g: %.17g, expected %.17g", k, x, y,
                   found[12 * i + k], expected[k]);
    }

    double *values = blank<double>(FUNCTIONS * n);
    functions<<<(n + 63) / 64, 64>>>(da, values, n);
    CHECK(cudaGetLastError());
    found = download(values, FUNCTIONS * n);
    // The CUDA Programming Guide's table of errors in units of the last place, plus half for rounding.  The host's own
    // functions in double precision are no better than that (cbrt), so it computes with long doubles.
    const double ulps[FUNCTIONS] = {1.5, 1.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 1.5, 2.5, 2.5, 2.5, 2.5, 10.5};
    double worst = 0;
    for (int i = 0; i < n; i++) {
        long double x = a[i], size = std::fabs(x);
        long double expected[FUNCTIONS] = {std::exp(x), std::log(size), std::sin(x), std::cos(x), std::tan(x), std::atan(x),
                                           std::sinh(x / 4), std::tanh(x), std::cbrt(x), std::pow(size, static_cast<long double>(1.7)),
                                           std::erf(x), std::log1p(size), std::hypot(x, 3.0l), std::tgamma(size / 4 + 0.5l)};
        for (int k = 0; k < FUNCTIONS; k++) {
            double near = std::fabs(static_cast<double>(expected[k])), unit = std::nextafter(near, INFINITY) - near;
            double error = static_cast<double>(std::fabs(found[FUNCTIONS * i + k] - expected[k])) / unit;
            worst = std::fmax(worst, error);
            expect(error <= ulps[k], "function %d of %.17g: %.17g, expected %.17Lg", k, a[i], found[FUNCTIONS * i + k], expected[k]);
        }
    }
    std::printf("doubles n=%d worst error below 12 ulp: %s\n", n, worst < 12 ? "yes" : "no");
    return verdict();
}
