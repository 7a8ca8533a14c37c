// Warp-wide reductions in one instruction (compute capability 8.0), under full and partial masks.
// nvcc: -arch=sm_80
#include "check.h"

const int RESULTS = 8;

__global__ void reductions(const unsigned int *values, unsigned int *out) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x, value = values[i];
    unsigned int mask = __ballot_sync(0xffffffffu, value % 3 == 0);
    if (value % 3 != 0) mask = ~mask;
    unsigned int *mine = out + RESULTS * i;
    mine[0] = __reduce_add_sync(0xffffffffu, value);
    mine[1] = __reduce_min_sync(0xffffffffu, value);
    mine[2] = static_cast<unsigned int>(__reduce_max_sync(0xffffffffu, static_cast<int>(value)));
    if (value % 3 == 0) {
        mine[3] = __reduce_and_sync(mask, value);
        mine[4] = __reduce_or_sync(mask, value);
    } else {
        mine[3] = __reduce_xor_sync(mask, value);
        mine[4] = static_cast<unsigned int>(__reduce_add_sync(mask, static_cast<int>(value)));
    }
    mine[5] = __reduce_max_sync(mask, value);
    mine[6] = static_cast<unsigned int>(__reduce_min_sync(mask, static_cast<int>(value)));
    mine[7] = mask;
}

int main() {
    const int warps = 32, n = warps * 32;
    Random random;
    std::vector<unsigned int> values(n);
    for (unsigned int &value : values) value = random.next() >> random.below(32);
    unsigned int *out = blank<unsigned int>(RESULTS * n);
    reductions<<<warps / 2, 64>>>(upload(values), out);
    CHECK(cudaGetLastError());
    std::vector<unsigned int> found = download(out, RESULTS * n);
    for (int w = 0; w < warps; w++) {
        for (int lane = 0; lane < 32; lane++) {
            bool third = values[w * 32 + lane] % 3 == 0;
            unsigned int sum = 0, least = ~0u, all = ~0u, some = 0, odd = 0, partial = 0, highest = 0, mask = 0;
            int greatest = INT32_MIN, lowest = INT32_MAX;
            for (int other = 0; other < 32; other++) {
                unsigned int value = values[w * 32 + other];
                int number = static_cast<int>(value);
                sum += value;
                least = value < least ? value : least;
                greatest = number > greatest ? number : greatest;
                if ((value % 3 == 0) != third) continue;
                mask |= 1u << other;
                all &= value;
                some |= value;
                odd ^= value;
                partial += value;
                highest = value > highest ? value : highest;
                lowest = number < lowest ? number : lowest;
            }
            unsigned int expected[RESULTS] = {sum, least, static_cast<unsigned int>(greatest), third ? all : odd,
                                              third ? some : partial, highest, static_cast<unsigned int>(lowest), mask};
            for (int k = 0; k < RESULTS; k++) {
                unsigned int actual = found[RESULTS * (w * 32 + lane) + k];
                expect(actual == expected[k], "result %d, warp %d lane %d: %x, expected %x", k, w, lane, actual, expected[k]);
            }
        }
    }
    std::printf("redux warps=%d sum0=%u\n", warps, found[0]);
    return verdict();
}
