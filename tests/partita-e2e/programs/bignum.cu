// Numbers of 512 bits: products, sums and differences with the carry chains of inline PTX, checked by the host's 128-bit
// arithmetic.
#include "check.h"

const int WORDS = 16;

__device__ uint32_t addInto(uint32_t *a, const uint32_t *b) {
    uint32_t carry;
    asm volatile("add.cc.u32 %0, %0, %1;" : "+r"(a[0]) : "r"(b[0]));
#pragma unroll
    for (int i = 1; i < WORDS; i++) asm volatile("addc.cc.u32 %0, %0, %1;" : "+r"(a[i]) : "r"(b[i]));
    asm volatile("addc.u32 %0, 0, 0;" : "=r"(carry));
    return carry;
}

__device__ uint32_t subtractFrom(uint32_t *a, const uint32_t *b) {
    uint32_t borrow;
    asm volatile("sub.cc.u32 %0, %0, %1;" : "+r"(a[0]) : "r"(b[0]));
#pragma unroll
    for (int i = 1; i < WORDS; i++) asm volatile("subc.cc.u32 %0, %0, %1;" : "+r"(a[i]) : "r"(b[i]));
    asm volatile("subc.u32 %0, 0, 0;" : "=r"(borrow));
    return borrow;
}

__device__ void multiply(const uint32_t *a, const uint32_t *b, uint32_t *product) {
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) product[i] = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        uint32_t *p = product + i, b0 = b[i];
        asm volatile("mad.lo.cc.u32 %0, %1, %2, %0;" : "+r"(p[0]) : "r"(a[0]), "r"(b0));
#pragma unroll
        for (int j = 1; j < WORDS; j++) asm volatile("madc.lo.cc.u32 %0, %1, %2, %0;" : "+r"(p[j]) : "r"(a[j]), "r"(b0));
        asm volatile("addc.u32 %0, %0, 0;" : "+r"(p[WORDS]));
        asm volatile("mad.hi.cc.u32 %0, %1, %2, %0;" : "+r"(p[1]) : "r"(a[0]), "r"(b0));
#pragma unroll
        for (int j = 1; j < WORDS; j++) asm volatile("madc.hi.cc.u32 %0, %1, %2, %0;" : "+r"(p[j + 1]) : "r"(a[j]), "r"(b0));
        if (i + WORDS + 1 < 2 * WORDS) asm volatile("addc.u32 %0, %0, 0;" : "+r"(p[WORDS + 1]));
    }
}

__global__ void arithmetic(const uint32_t *a, const uint32_t *b, uint32_t *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t x[WORDS], y[WORDS], sum[WORDS], product[2 * WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        x[k] = a[i * WORDS + k];
        y[k] = b[i * WORDS + k];
        sum[k] = x[k];
    }
    multiply(x, y, product);
    uint32_t *mine = out + i * (4 * WORDS + 2);
    mine[4 * WORDS] = addInto(sum, y);
    mine[4 * WORDS + 1] = subtractFrom(x, y);
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        mine[k] = sum[k];
        mine[WORDS + k] = x[k];
        mine[2 * WORDS + k] = product[k];
        mine[3 * WORDS + k] = product[WORDS + k];
    }
}

int main() {
    const int n = 600;
    Random random;
    std::vector<uint32_t> a(n * WORDS), b(n * WORDS);
    for (int i = 0; i < n * WORDS; i++) {
        // Words of ones and zeros make carries run far.
        a[i] = random.below(3) == 0 ? ~0u : random.next();
        b[i] = random.below(3) == 0 ? (random.below(2) ? ~0u : 0u) : random.next();
    }
    for (int k = 0; k < WORDS; k++) {
        a[k] = b[k] = ~0u;
        a[WORDS + k] = 0;
        b[WORDS + k] = k == 0;
    }
    const int size = 4 * WORDS + 2;
    uint32_t *out = blank<uint32_t>(n * size);
    arithmetic<<<(n + 63) / 64, 64>>>(upload(a), upload(b), out, n);
    CHECK(cudaGetLastError());
    std::vector<uint32_t> found = download(out, n * size);
    for (int i = 0; i < n; i++) {
        const uint32_t *x = &a[i * WORDS], *y = &b[i * WORDS];
        std::vector<uint32_t> e(size, 0);
        uint64_t carry = 0;
        int64_t borrow = 0;
        for (int k = 0; k < WORDS; k++) {
            carry += static_cast<uint64_t>(x[k]) + y[k];
            e[k] = static_cast<uint32_t>(carry);
            carry >>= 32;
            borrow += static_cast<int64_t>(x[k]) - y[k];
            e[WORDS + k] = static_cast<uint32_t>(borrow);
            borrow >>= 32;
        }
        e[4 * WORDS] = static_cast<uint32_t>(carry);
        e[4 * WORDS + 1] = static_cast<uint32_t>(borrow);
        unsigned __int128 column = 0;
        for (int k = 0; k < 2 * WORDS; k++) {
            for (int j = k < WORDS ? 0 : k - WORDS + 1; j <= k && j < WORDS; j++)
                column += static_cast<uint64_t>(x[j]) * y[k - j];
            e[2 * WORDS + k] = static_cast<uint32_t>(column);
            column >>= 32;
        }
        for (int k = 0; k < size; k++)
            expect(found[i * size + k] == e[k], "number %d, word %d: %08x, expected %08x", i, k, found[i * size + k], e[k]);
    }
    std::printf("bignum n=%d bits=%d\n", n, 32 * WORDS);
    return verdict();
}
