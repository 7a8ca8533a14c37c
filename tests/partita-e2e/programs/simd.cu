// Arithmetic on four bytes or two halves of a word at a time, each against plain C++ on the host.
#include "check.h"

const int RESULTS = 14;

__global__ void compute(const uint32_t *a, const uint32_t *b, uint32_t *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t x = a[i], y = b[i], *mine = out + RESULTS * i;
    mine[0] = __vadd4(x, y);
    mine[1] = __vsub2(x, y);
    mine[2] = __vabsdiffu4(x, y);
    mine[3] = __vabsdiffs2(x, y);
    mine[4] = __vmaxu4(x, y);
    mine[5] = __vmins2(x, y);
    mine[6] = __vavgu4(x, y);
    mine[7] = __vcmpgts4(x, y);
    mine[8] = __vcmpeq2(x, y);
    mine[9] = __vaddus4(x, y);
    mine[10] = __vsubss2(x, y);
    mine[11] = __vsadu4(x, y);
    mine[12] = __vneg4(x);
    mine[13] = __vsetltu2(x, y);
}

// Applies a function to each part of two words; parts are widened with their sign or without.
template <class Function>
uint32_t parts(uint32_t x, uint32_t y, int bits, bool isSigned, Function function) {
    uint32_t result = 0, mask = (1u << bits) - 1;
    for (int at = 0; at < 32; at += bits) {
        int p = static_cast<int>(x >> at & mask), q = static_cast<int>(y >> at & mask);
        if (isSigned) {
            p = p >> (bits - 1) ? p - (1 << bits) : p;
            q = q >> (bits - 1) ? q - (1 << bits) : q;
        }
        result |= (static_cast<uint32_t>(function(p, q)) & mask) << at;
    }
    return result;
}

int main() {
    Random random;
    std::vector<uint32_t> a, b;
    for (uint32_t x : {0u, ~0u, 0x80808080u, 0x7f7f7f7fu, 0x80008000u, 0x7fff7fffu, 0x01ff807fu})
        for (uint32_t y : {0u, ~0u, 0x80808080u, 0x01010101u, 0x00010001u, 0x7fff8000u}) {
            a.push_back(x);
            b.push_back(y);
        }
    for (int i = 0; i < 4000; i++) {
        a.push_back(random.next());
        b.push_back(i % 5 == 0 ? a.back() ^ 0xff00u : random.next());
    }
    int n = static_cast<int>(a.size());
    uint32_t *out = blank<uint32_t>(RESULTS * n);
    compute<<<(n + 63) / 64, 64>>>(upload(a), upload(b), out, n);
    CHECK(cudaGetLastError());
    std::vector<uint32_t> found = download(out, RESULTS * n);
    for (int i = 0; i < n; i++) {
        uint32_t x = a[i], y = b[i], differences = 0;
        auto difference = [](int p, int q) { return p > q ? p - q : q - p; };
        for (int at = 0; at < 32; at += 8) differences += difference(x >> at & 255, y >> at & 255);
        uint32_t expected[RESULTS] = {
            parts(x, y, 8, false, [](int p, int q) { return p + q; }),
            parts(x, y, 16, false, [](int p, int q) { return p - q; }),
            parts(x, y, 8, false, difference),
            parts(x, y, 16, true, difference),
            parts(x, y, 8, false, [](int p, int q) { return p > q ? p : q; }),
            parts(x, y, 16, true, [](int p, int q) { return p < q ? p : q; }),
            parts(x, y, 8, false, [](int p, int q) { return (p + q + 1) / 2; }),
            parts(x, y, 8, true, [](int p, int q) { return p > q ? -1 : 0; }),
            parts(x, y, 16, false, [](int p, int q) { return p == q ? -1 : 0; }),
            parts(x, y, 8, false, [](int p, int q) { return p + q > 255 ? 255 : p + q; }),
            parts(x, y, 16, true, [](int p, int q) { return p - q > 32767 ? 32767 : p - q < -32768 ? -32768 : p - q; }),
            differences,
            parts(x, 0, 8, false, [](int p, int) { return -p; }),
            parts(x, y, 16, false, [](int p, int q) { return p < q ? 1 : 0; }),
        };
        for (int k = 0; k < RESULTS; k++)
            expect(found[RESULTS * i + k] == expected[k], "result %d of %08x %08x: %08x, expected %08x", k, x, y,
                   found[RESULTS * i + k], expected[k]);
    }
    std::printf("simd n=%d results=%d\n", n, RESULTS);
    return verdict();
}
