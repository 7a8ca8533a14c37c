// Atomics of more than one register on memory that the host writes at the same time: 128 bits compared and exchanged by both sides,
// vectors of floats to whose elements both sides add. No count is lost.
// nvcc: -arch=sm_90 -Xcompiler -mcx16
#include "check.h"
#include <atomic>
#include <thread>

// The host counts while the kernel runs, so often at most.
constexpr int THREADS = 64, ROUNDS = 50, HOST_ROUNDS = 4000000;
constexpr unsigned long long WEIGHT = 0x1'0000'0001;

// Both halves change together, so neither may be seen without the other.
__global__ void countUp(ulonglong2 *shared, int *torn) {
    for (int round = 0; round < ROUNDS; round++) {
        unsigned long long count = 0, weight = 0, sawCount, sawWeight;
        while (true) {
            asm volatile(
                "{\n\t.reg .b128 seen, expected, next;\n\t"
                "mov.b128 expected, {%3, %4};\n\tmov.b128 next, {%5, %6};\n\t"
                "atom.global.sys.relaxed.cas.b128 seen, [%2], expected, next;\n\t"
                "mov.b128 {%0, %1}, seen;\n\t}"
                : "=l"(sawCount), "=l"(sawWeight)
                : "l"(shared), "l"(count), "l"(weight), "l"(count + 1), "l"(weight + WEIGHT)
                : "memory");
            if (sawCount * WEIGHT != sawWeight) atomicAdd(torn, 1);
            if (sawCount == count && sawWeight == weight) break;
            count = sawCount;
            weight = sawWeight;
        }
    }
}

__global__ void addVectors(float4 *shared) {
    for (int round = 0; round < ROUNDS; round++) atomicAdd_system(shared, make_float4(1, 2, 3, 4));
}

static void hostAdd(float *word, float value) {
    unsigned seen, next;
    float sum;
    __atomic_load(reinterpret_cast<unsigned *>(word), &seen, __ATOMIC_RELAXED);
    do {
        std::memcpy(&sum, &seen, 4);
        sum += value;
        std::memcpy(&next, &sum, 4);
    } while (!__atomic_compare_exchange_n(reinterpret_cast<unsigned *>(word), &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
}

int main() {
    char *memory;
    CHECK(cudaHostAlloc(reinterpret_cast<void **>(&memory), 4096, cudaHostAllocMapped));
    std::memset(memory, 0, 4096);
    int *torn = upload(std::vector<int>(1, 0));
    ulonglong2 *pair = reinterpret_cast<ulonglong2 *>(memory);
    countUp<<<1, THREADS>>>(pair, torn);
    std::atomic<bool> ended{false};
    int rounds = 0;
    std::thread counter([&] {
        auto *whole = reinterpret_cast<unsigned __int128 *>(memory);
        for (; rounds < HOST_ROUNDS && !ended; rounds++) {
            unsigned __int128 seen = 0, next;
            while (true) {
                unsigned long long count = static_cast<unsigned long long>(seen) + 1;
                next = static_cast<unsigned __int128>(count * WEIGHT) << 64 | count;
                unsigned __int128 found = __sync_val_compare_and_swap(whole, seen, next);
                if (found == seen) break;
                seen = found;
            }
        }
    });
    CHECK(cudaDeviceSynchronize());
    ended = true;
    counter.join();
    unsigned long long all = THREADS * ROUNDS + rounds;
    expect(pair->x == all && pair->y == all * WEIGHT, "%llu %llx, expected %llu", pair->x, pair->y, all);
    expect(download(torn, 1)[0] == 0, "%d halves were seen without the other", download(torn, 1)[0]);

    float *vector = reinterpret_cast<float *>(memory + 64);
    addVectors<<<1, THREADS>>>(reinterpret_cast<float4 *>(vector));
    ended = false;
    rounds = 0;
    std::thread adder([&] {
        for (; rounds < HOST_ROUNDS && !ended; rounds++) hostAdd(vector + rounds % 4, 1.0f);
    });
    CHECK(cudaDeviceSynchronize());
    ended = true;
    adder.join();
    for (int i = 0; i < 4; i++) {
        float wanted = static_cast<float>((i + 1) * THREADS * ROUNDS + (rounds + 3 - i) / 4);
        expect(vector[i] == wanted, "element %d: %f, expected %f", i, vector[i], wanted);
    }
    std::printf("wide_atomics kernel=%d\n", THREADS * ROUNDS);
    return verdict();
}
