// Many small launches: 10,000 dependent empty kernels, then several streams that each count by themselves.
#include "check.h"

__global__ void empty() {}

__global__ void slow(int *counter) {
    for (int i = 0; i < 20; i++) {
        atomicAdd(counter, 1);
        for (long long begin = clock64(); clock64() - begin < 20000;) continue;
    }
}

__global__ void increment(int *counter) { *counter += 1; }

// Takes the value of the launch before and mixes in its own number, so that lost, doubled or swapped launches show.
__global__ void chain(unsigned int *state, unsigned int number) { *state = (*state ^ number) * 16777619u; }

int main() {
    for (int i = 0; i < 10000; i++) empty<<<1, 32>>>();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());

    const int streams = 6, each = 500;
    cudaStream_t stream[streams];
    int *counters = upload(std::vector<int>(streams, 0));
    unsigned int *states = upload(std::vector<unsigned int>(streams, 2166136261u));
    for (cudaStream_t &s : stream) CHECK(cudaStreamCreate(&s));
    for (unsigned int i = 0; i < each; i++)
        for (int s = 0; s < streams; s++) {
            increment<<<1, 1, 0, stream[s]>>>(counters + s);
            chain<<<1, 1, 0, stream[s]>>>(states + s, i * streams + s);
        }
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::vector<int> counts = download(counters, streams);
    std::vector<unsigned int> found = download(states, streams);
    for (int s = 0; s < streams; s++) {
        unsigned int state = 2166136261u;
        for (unsigned int i = 0; i < each; i++) state = (state ^ (i * streams + s)) * 16777619u;
        expect(counts[s] == each, "stream %d: %d launches", s, counts[s]);
        expect(found[s] == state, "stream %d: %x, expected %x", s, found[s], state);
        CHECK(cudaStreamDestroy(stream[s]));
    }

    // More than anybody keeps in a queue, behind a kernel that takes its time, without waiting once.
    const int many = 18000;
    CHECK(cudaMemset(counters, 0, sizeof(int)));
    slow<<<1, 1>>>(counters);
    for (int i = 0; i < many; i++) CHECK(cudaMemsetAsync(counters + 1 + i % 2, i % 100, 4));
    increment<<<1, 1>>>(counters);
    std::vector<int> last = download(counters, 3);
    expect(last[0] == 21, "%d behind many operations", last[0]);
    expect(last[1] == 98 * 0x01010101 && last[2] == 99 * 0x01010101, "the last fills: %x, %x", last[1], last[2]);
    std::printf("many_launches empty=10000 streams=%d each=%d\n", streams, 2 * each);
    return verdict();
}
