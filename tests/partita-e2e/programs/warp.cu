// Warp-wide functions under full and partial masks: votes, matches, every kind of shuffle, and lanes that have left.
#include "check.h"

struct Results {
    unsigned int ballot, any, all, match, matchAll, active, up, down, butterfly, indexed, segment;
    int agreed;
};

__global__ void functions(const unsigned int *values, Results *out) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, value = values[i];
    const unsigned int everyone = 0xffffffffu;
    Results r = {};
    r.ballot = __ballot_sync(everyone, value & 1);
    r.any = __any_sync(everyone, value == 7);
    r.all = __all_sync(everyone, value < 16);
    r.match = __match_any_sync(everyone, value);
    r.matchAll = __match_all_sync(everyone, value / 16, &r.agreed);
    r.up = __shfl_up_sync(everyone, value, 3);
    r.down = __shfl_down_sync(everyone, value, 5, 16);
    r.butterfly = __shfl_xor_sync(everyone, value, 9);
    r.indexed = __shfl_sync(everyone, value, static_cast<int>(value));
    r.segment = __shfl_sync(everyone, value, static_cast<int>(lane + 1), 8);
    if (lane % 3 == 1) {
        r.active = __activemask();
        unsigned int thirds = 0x92492492u;
        r.active &= __ballot_sync(thirds, 1);
        r.all += __popc(__ballot_sync(thirds, value & 2)) << 8;
    }
    out[i] = r;
}

// Half of each warp leaves; the rest goes on with itself.
__global__ void leave(const unsigned int *values, unsigned int *out) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    out[i] = 0;
    if (lane % 2 == 0) return;
    unsigned int sum = values[i];
    for (int offset = 16; offset > 1; offset /= 2) sum += __shfl_xor_sync(0xaaaaaaaau, sum, offset);
    out[i] = sum;
}

// Eight lanes sum by steps of which the first two reach beyond them, as reductions of few partial sums do.
__global__ void few(const unsigned int *values, unsigned int *out) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, sum = values[i];
    unsigned int there = __ballot_sync(0xffffffffu, lane < 8);
    if (lane < 8)
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(there, sum, offset);
    out[i] = sum;
}

int main() {
    const int warps = 40, n = warps * 32;
    Random random;
    std::vector<unsigned int> values(n);
    for (int w = 0; w < warps; w++)
        for (int lane = 0; lane < 32; lane++)
            values[w * 32 + lane] = w % 4 == 0 ? 5 : random.below(w % 4 == 1 ? 8 : w % 4 == 2 ? 32 : 1000);
    unsigned int *device = upload(values);
    Results *out = blank<Results>(n);
    functions<<<warps / 4, 128>>>(device, out);
    CHECK(cudaGetLastError());
    std::vector<Results> found = download(out, n);
    for (int w = 0; w < warps; w++) {
        const unsigned int *v = &values[w * 32];
        unsigned int ballot = 0, any = 0, all = 1, thirds = 0;
        bool agreed = true;
        for (int lane = 0; lane < 32; lane++) {
            ballot |= (v[lane] & 1) << lane;
            any |= v[lane] == 7;
            all &= v[lane] < 16;
            agreed &= v[lane] / 16 == v[0] / 16;
            if (lane % 3 == 1) thirds += v[lane] >> 1 & 1;
        }
        for (int lane = 0; lane < 32; lane++) {
            const Results &r = found[w * 32 + lane];
            unsigned int match = 0;
            for (int other = 0; other < 32; other++) match |= (v[other] == v[lane] ? 1u : 0u) << other;
            bool third = lane % 3 == 1;
            bool votes = r.ballot == ballot && (r.any != 0) == (any != 0) && r.match == match;
            bool counts = third ? (r.all & 1) == all && r.all >> 8 == thirds && r.active == 0x92492492u
                                : (r.all != 0) == (all != 0) && r.active == 0;
            bool agreement = agreed ? r.agreed != 0 && r.matchAll == 0xffffffffu : r.agreed == 0 && r.matchAll == 0;
            bool shuffles = r.up == v[lane < 3 ? lane : lane - 3] && r.down == v[lane % 16 + 5 < 16 ? lane + 5 : lane] &&
                            r.butterfly == v[lane ^ 9] && r.indexed == v[v[lane] % 32] &&
                            r.segment == v[lane / 8 * 8 + (lane + 1) % 8];
            expect(votes, "votes, warp %d lane %d: %x %x %x", w, lane, r.ballot, r.any, r.match);
            expect(counts, "partial mask, warp %d lane %d: %x %x", w, lane, r.all, r.active);
            expect(agreement, "match all, warp %d lane %d: %x %d", w, lane, r.matchAll, r.agreed);
            expect(shuffles, "shuffles, warp %d lane %d: %u %u %u %u %u", w, lane, r.up, r.down, r.butterfly, r.indexed,
                   r.segment);
        }
    }

    unsigned int *sums = blank<unsigned int>(n);
    leave<<<warps / 4, 128>>>(device, sums);
    CHECK(cudaGetLastError());
    std::vector<unsigned int> left = download(sums, n);
    for (int w = 0; w < warps; w++) {
        unsigned int sum = 0;
        for (int lane = 1; lane < 32; lane += 2) sum += values[w * 32 + lane];
        for (int lane = 0; lane < 32; lane++) {
            unsigned int expected = lane % 2 == 0 ? 0 : sum;
            expect(left[w * 32 + lane] == expected, "leave, warp %d lane %d: %u, expected %u", w, lane, left[w * 32 + lane],
                   expected);
        }
    }
    few<<<warps / 4, 128>>>(device, sums);
    CHECK(cudaGetLastError());
    left = download(sums, n);
    for (int w = 0; w < warps; w++) {
        unsigned int sum = 0;
        for (int lane = 0; lane < 8; lane++) sum += values[w * 32 + lane];
        expect(left[w * 32] == sum, "few lanes, warp %d: %u, expected %u", w, left[w * 32], sum);
    }
    std::printf("warp warps=%d ballot0=%x\n", warps, found[0].ballot);
    return verdict();
}
