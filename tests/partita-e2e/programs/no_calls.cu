// A kernel and its program that answer each other through memory, round after round, without a call in between: whoever waits for the
// program's next call waits for ever.
#include "check.h"

__global__ void answer(volatile unsigned *said, volatile unsigned *answered, unsigned rounds) {
    for (unsigned round = 1; round <= rounds; round++) {
        while (*said != round) {}
        *answered = 3 * round;
        __threadfence_system();
    }
}

int main() {
    const unsigned rounds = 50;
    volatile unsigned *words;
    CHECK(cudaHostAlloc(reinterpret_cast<void **>(const_cast<unsigned **>(&words)), 4096, cudaHostAllocMapped));
    for (int launch = 0; launch < 3; launch++) {
        words[0] = words[1] = 0;
        answer<<<1, 1>>>(words, words + 1, rounds);
        for (unsigned round = 1; round <= rounds; round++) {
            words[0] = round;
            while (words[1] == 3 * (round - 1)) {}
            expect(words[1] == 3 * round, "%u answered to %u", words[1], round);
        }
        CHECK(cudaDeviceSynchronize());
    }
    std::printf("no_calls rounds=%u\n", rounds);
    return verdict();
}
