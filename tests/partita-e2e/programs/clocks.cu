// The device's clocks inside a kernel, between kernels and between events: each rises, and a wait on one ends.
#include "check.h"

__device__ unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Two readings of each clock with work between; then a wait for `cycles` and one for `nanoseconds`.
__global__ void read(unsigned long long *readings, float *sink, long long cycles, unsigned long long nanoseconds) {
    unsigned long long *own = readings + 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    own[0] = clock64();
    own[2] = global_timer();
    float x = threadIdx.x;
    for (int i = 0; i < 2000; i++) x = x * 1.0001f + 0.5f;
    long long start = clock64();
    while (clock64() - start < cycles) {}
    unsigned long long from = global_timer();
    while (global_timer() - from < nanoseconds) {}
    own[1] = clock64();
    own[3] = global_timer();
    sink[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

int main() {
    const int blocks = 3, threads = 64, count = blocks * threads;
    const long long cycles = 20000;
    const unsigned long long nanoseconds = 30000;
    unsigned long long *readings = blank<unsigned long long>(4 * count);
    float *sink = blank<float>(count);
    unsigned long long last = 0;
    for (int launch = 0; launch < 3; launch++) {
        read<<<blocks, threads>>>(readings, sink, cycles, nanoseconds);
        CHECK(cudaGetLastError());
        std::vector<unsigned long long> found = download(readings, 4 * count);
        unsigned long long latest = last;
        for (int i = 0; i < count; i++) {
            const unsigned long long *own = &found[4 * i];
            expect(own[1] - own[0] >= 2000 + (unsigned long long)cycles && own[1] > own[0], "clock64 from %llu to %llu",
                   own[0], own[1]);
            expect(own[3] - own[2] >= nanoseconds && own[3] > own[2], "globaltimer from %llu to %llu", own[2], own[3]);
            expect(own[2] > last, "globaltimer %llu in launch %d, %llu before", own[2], launch, last);
            if (own[3] > latest) latest = own[3];
        }
        last = latest;
    }

    // Events with a kernel, a copy, and nothing between.
    cudaEvent_t events[4];
    for (cudaEvent_t &event : events) CHECK(cudaEventCreate(&event));
    CHECK(cudaEventRecord(events[0]));
    read<<<blocks, threads>>>(readings, sink, cycles, nanoseconds);
    CHECK(cudaEventRecord(events[1]));
    CHECK(cudaMemsetAsync(sink, 0, count * sizeof(float)));
    CHECK(cudaEventRecord(events[2]));
    CHECK(cudaEventRecord(events[3]));
    CHECK(cudaEventSynchronize(events[3]));
    float times[3];
    for (int i = 0; i < 3; i++) CHECK(cudaEventElapsedTime(&times[i], events[i], events[i + 1]));
    expect(times[0] >= 0.03f && times[0] < 1e6f, "%g ms for a kernel that waits 30 us", times[0]);
    expect(times[1] > 0, "%g ms for a fill", times[1]);
    expect(times[2] >= 0, "%g ms for nothing", times[2]);
    std::printf("clocks blocks=%d threads=%d\n", blocks, threads);
    return verdict();
}
