// Integer intrinsics, each against plain C++ on the host, over edge values and random ones.
#include "check.h"

const int RESULTS = 22;

__global__ void compute(const uint32_t *a, const uint32_t *b, const uint32_t *c, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t x = a[i], y = b[i], z = c[i];
    uint64_t wide = static_cast<uint64_t>(x) << 32 | y;
    long long *mine = out + RESULTS * i;
    mine[0] = __clz(x);
    mine[1] = __popc(x);
    mine[2] = __brev(x);
    mine[3] = __ffs(x);
    mine[4] = __byte_perm(x, y, z & 0x7777);
    mine[5] = __funnelshift_l(x, y, z);
    mine[6] = __funnelshift_r(x, y, z);
    mine[7] = __funnelshift_lc(x, y, z);
    mine[8] = __funnelshift_rc(x, y, z);
    mine[9] = __dp4a(static_cast<int>(x), static_cast<int>(y), static_cast<int>(z));
    mine[10] = __dp4a(x, y, z);
    mine[11] = __mulhi(static_cast<int>(x), static_cast<int>(y));
    mine[12] = __umulhi(x, y);
    mine[13] = __clzll(wide);
    mine[14] = __popcll(wide);
    mine[15] = static_cast<long long>(__brevll(wide));
    mine[16] = static_cast<long long>(__umul64hi(wide, wide ^ z));
    mine[17] = __sad(static_cast<int>(x), static_cast<int>(y), z);
    mine[18] = __usad(x, y, z);
    mine[19] = __hadd(static_cast<int>(x), static_cast<int>(y));
    mine[20] = __urhadd(x, y);
    mine[21] = __mul24(static_cast<int>(x), static_cast<int>(y));
}

uint32_t byte(uint32_t x, int k) { return x >> 8 * k & 255; }

void reference(uint32_t x, uint32_t y, uint32_t z, long long *e) {
    int sx = static_cast<int>(x), sy = static_cast<int>(y);
    uint64_t wide = static_cast<uint64_t>(x) << 32 | y, pair = static_cast<uint64_t>(y) << 32 | x;
    int leading = 0, ones = 0, leadingWide = 0, onesWide = 0, first = 0;
    uint32_t reversed = 0, permuted = 0;
    uint64_t reversedWide = 0;
    while (leading < 32 && !(x >> (31 - leading) & 1)) leading++;
    while (leadingWide < 64 && !(wide >> (63 - leadingWide) & 1)) leadingWide++;
    for (int k = 31; k >= 0; k--)
        if (x >> k & 1) first = k + 1;
    for (int k = 0; k < 64; k++) {
        if (k < 32) ones += x >> k & 1;
        if (k < 32 && (x >> k & 1)) reversed |= 1u << (31 - k);
        onesWide += wide >> k & 1;
        if (wide >> k & 1) reversedWide |= 1ull << (63 - k);
    }
    int dotSigned = static_cast<int>(z);
    uint32_t dot = z;
    for (int k = 0; k < 4; k++) {
        permuted |= static_cast<uint32_t>(pair >> 8 * (z >> 4 * k & 7) & 255) << 8 * k;
        dot += byte(x, k) * byte(y, k);
        dotSigned = static_cast<int>(static_cast<uint32_t>(dotSigned) +
                                     static_cast<uint32_t>(static_cast<signed char>(byte(x, k)) * static_cast<signed char>(byte(y, k))));
    }
    unsigned int shift = z & 31, clamped = z > 32 ? 32 : z;
    e[0] = leading;
    e[1] = ones;
    e[2] = reversed;
    e[3] = first;
    e[4] = permuted;
    e[5] = static_cast<uint32_t>(pair << shift >> 32);
    e[6] = static_cast<uint32_t>(pair >> shift);
    e[7] = clamped == 32 ? x : static_cast<uint32_t>(pair << clamped >> 32);
    e[8] = clamped == 32 ? y : static_cast<uint32_t>(pair >> clamped);
    e[9] = dotSigned;
    e[10] = dot;
    e[11] = static_cast<int>(static_cast<long long>(sx) * sy >> 32);
    e[12] = static_cast<uint32_t>(static_cast<uint64_t>(x) * y >> 32);
    e[13] = leadingWide;
    e[14] = onesWide;
    e[15] = static_cast<long long>(reversedWide);
    e[16] = static_cast<long long>(static_cast<uint64_t>(static_cast<unsigned __int128>(wide) * (wide ^ z) >> 64));
    e[17] = static_cast<uint32_t>((sx > sy ? x - y : y - x) + z);
    e[18] = static_cast<uint32_t>((x > y ? x - y : y - x) + z);
    e[19] = static_cast<int>((static_cast<long long>(sx) + sy) >> 1);
    e[20] = static_cast<uint32_t>((static_cast<uint64_t>(x) + y + 1) >> 1);
    e[21] = static_cast<int>(static_cast<uint32_t>(static_cast<long long>(sx << 8 >> 8) * (sy << 8 >> 8)));
}

int main() {
    const uint32_t edges[] = {0,          1,          2,          31,         32,         33,         0x7f,       0x80,
                              0xff,       0x7fff,     0x8000,     0xffff,     0x00800000, 0x7fffffff, 0x80000000, 0x80000001,
                              0xfffffffe, 0xffffffff, 0x80808080, 0x7f7f7f7f, 0x01234567};
    Random random;
    std::vector<uint32_t> a, b, c;
    for (uint32_t x : edges)
        for (uint32_t y : edges)
            for (uint32_t z : {0u, 1u, 31u, 32u, 0x3210u, 0x7654u, 0xffffffffu}) {
                a.push_back(x);
                b.push_back(y);
                c.push_back(z);
            }
    for (int i = 0; i < 3000; i++) {
        a.push_back(random.next());
        b.push_back(random.next() >> random.below(32));
        c.push_back(random.next() >> random.below(32));
    }
    int n = static_cast<int>(a.size());
    long long *out = blank<long long>(n * RESULTS);
    compute<<<(n + 127) / 128, 128>>>(upload(a), upload(b), upload(c), out, n);
    CHECK(cudaGetLastError());
    std::vector<long long> found = download(out, n * RESULTS);
    for (int i = 0; i < n; i++) {
        long long expected[RESULTS];
        reference(a[i], b[i], c[i], expected);
        for (int k = 0; k < RESULTS; k++)
            expect(found[RESULTS * i + k] == expected[k], "result %d of %x %x %x: %llx, expected %llx", k, a[i], b[i], c[i],
                   static_cast<unsigned long long>(found[RESULTS * i + k]), static_cast<unsigned long long>(expected[k]));
    }
    std::printf("intrinsics n=%d results=%d\n", n, RESULTS);
    return verdict();
}
