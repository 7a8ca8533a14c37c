// SHA-256 of many messages of different lengths, one per thread, against the examples of FIPS 180-4 and a host version
// that is written another way.
#include <cstring>
#include <string>

#include "check.h"

__constant__ uint32_t roundConstants[64];

__device__ uint32_t rotate(uint32_t x, int by) { return __funnelshift_r(x, x, by); }

__device__ void compress(uint32_t *state, const uint8_t *block) {
    uint32_t w[16], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
                    h = state[7];
    for (int i = 0; i < 16; i++)
        w[i] = static_cast<uint32_t>(block[4 * i]) << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
#pragma unroll 16
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            uint32_t x = w[(i + 1) & 15], y = w[(i + 14) & 15];
            w[i & 15] += (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[(i + 9) & 15] + (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
        }
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + roundConstants[i] + w[i & 15];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

__global__ void sha256(const uint8_t *text, const int *offsets, int count, uint32_t *digests) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint8_t *message = text + offsets[i];
    int length = offsets[i + 1] - offsets[i], at = 0;
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (; length - at >= 64; at += 64) compress(state, message + at);
    uint8_t last[128] = {};
    int rest = length - at, size = rest < 56 ? 64 : 128;
    memcpy(last, message + at, rest);
    last[rest] = 0x80;
    for (int k = 0; k < 8; k++) last[size - 1 - k] = static_cast<uint8_t>(static_cast<uint64_t>(length) * 8 >> 8 * k);
    for (int k = 0; k < size; k += 64) compress(state, last + k);
    for (int k = 0; k < 8; k++) digests[i * 8 + k] = state[k];
}

// Fractional bits of the cube roots of the first 64 primes, found in whole numbers.
std::vector<uint32_t> primeRoots() {
    std::vector<uint32_t> roots;
    for (uint32_t n = 2; roots.size() < 64; n++) {
        bool prime = true;
        for (uint32_t d = 2; d * d <= n; d++) prime &= n % d != 0;
        if (!prime) continue;
        // The greatest r with r^3 <= n * 2^96, bit by bit; its low 32 bits are the fraction.
        unsigned __int128 r = 0;
        for (int bit = 35; bit >= 0; bit--) {
            unsigned __int128 t = r | static_cast<unsigned __int128>(1) << bit;
            if (t * t * t <= static_cast<unsigned __int128>(n) << 96) r = t;
        }
        roots.push_back(static_cast<uint32_t>(r));
    }
    return roots;
}

// The standard as it is written: the whole padded message, a schedule of 64 words, an array of eight registers.
std::vector<uint32_t> reference(std::string text, const std::vector<uint32_t> &k) {
    uint64_t bits = text.size() * 8;
    text += '\x80';
    while (text.size() % 64 != 56) text += '\0';
    for (int i = 7; i >= 0; i--) text += static_cast<char>(bits >> 8 * i);
    std::vector<uint32_t> hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    auto turn = [](uint32_t x, int by) { return x >> by | x << (32 - by); };
    for (size_t at = 0; at < text.size(); at += 64) {
        uint32_t w[64], v[8];
        for (int t = 0; t < 64; t++) {
            w[t] = 0;
            if (t < 16)
                for (int b = 0; b < 4; b++) w[t] = w[t] << 8 | static_cast<uint8_t>(text[at + 4 * t + b]);
            else
                w[t] = (turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10) + w[t - 7] +
                       (turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 16];
        }
        for (int i = 0; i < 8; i++) v[i] = hash[i];
        for (int t = 0; t < 64; t++) {
            uint32_t choose = (v[4] & v[5]) | (~v[4] & v[6]), most = (v[0] & (v[1] | v[2])) | (v[1] & v[2]);
            uint32_t t1 = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + choose + k[t] + w[t];
            uint32_t t2 = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + most;
            for (int i = 7; i > 0; i--) v[i] = v[i - 1] + (i == 4 ? t1 : 0);
            v[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) hash[i] += v[i];
    }
    return hash;
}

int main() {
    std::vector<uint32_t> k = primeRoots();
    CHECK(cudaMemcpyToSymbol(roundConstants, k.data(), 64 * sizeof(uint32_t)));
    Random random;
    std::vector<std::string> messages = {"abc", "", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"};
    for (int length = 0; length < 300; length++) {
        std::string text;
        for (int i = 0; i < length; i++) text += static_cast<char>(random.below(256));
        messages.push_back(text);
    }
    std::vector<int> offsets = {0};
    std::vector<uint8_t> text;
    for (const std::string &message : messages) {
        text.insert(text.end(), message.begin(), message.end());
        offsets.push_back(static_cast<int>(text.size()));
    }
    int count = static_cast<int>(messages.size());
    uint32_t *digests = blank<uint32_t>(count * 8);
    sha256<<<(count + 63) / 64, 64>>>(upload(text), upload(offsets), count, digests);
    CHECK(cudaGetLastError());
    std::vector<uint32_t> found = download(digests, count * 8);
    for (int i = 0; i < count; i++) {
        std::vector<uint32_t> expected = reference(messages[i], k);
        for (int w = 0; w < 8; w++)
            expect(found[i * 8 + w] == expected[w], "message %d, word %d: %08x, expected %08x", i, w, found[i * 8 + w], expected[w]);
    }
    expect(found[0] == 0xba7816bf && found[7] == 0xf20015ad, "abc: %08x ... %08x", found[0], found[7]);
    expect(found[8] == 0xe3b0c442 && found[16] == 0x248d6a61, "the empty and the long example: %08x %08x", found[8], found[16]);
    std::printf("sha256 messages=%d abc=%08x\n", count, found[0]);
    return verdict();
}
