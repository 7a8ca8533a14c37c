// Atomic operations of every kind and width, in global and shared memory, and what they return.
#include "check.h"

struct Cells {
    int sum, least, greatest;
    unsigned int wrapped, down, bitsAnd, bitsOr, bitsXor, exchanged;
    unsigned long long wideSum, wideGreatest, wideAnd, wideCas;
    float floatSum;
    double doubleSum;
};

__host__ __device__ inline unsigned int mix(unsigned int i) {
    i ^= i >> 16;
    i *= 0x7feb352du;
    i ^= i >> 15;
    i *= 0x846ca68bu;
    return i ^ i >> 16;
}

// The greatest double by compare-and-swap, as before there were such instructions.
__device__ void greatestDouble(unsigned long long *cell, double value) {
    unsigned long long seen = *cell, assumed;
    do {
        assumed = seen;
        if (__longlong_as_double(static_cast<long long>(assumed)) >= value) return;
        seen = atomicCAS(cell, assumed, static_cast<unsigned long long>(__double_as_longlong(value)));
    } while (seen != assumed);
}

__device__ void update(Cells *cells, unsigned int i) {
    unsigned int value = mix(i);
    atomicAdd(&cells->sum, static_cast<int>(value));
    atomicMin(&cells->least, static_cast<int>(value));
    atomicMax(&cells->greatest, static_cast<int>(value));
    atomicInc(&cells->wrapped, 100);
    atomicDec(&cells->down, 70);
    atomicAnd(&cells->bitsAnd, value | 0x00ff00ffu);
    atomicOr(&cells->bitsOr, value & 0x0f0f0f0fu);
    atomicXor(&cells->bitsXor, value);
    atomicAdd(&cells->wideSum, static_cast<unsigned long long>(value) << 20);
    atomicMax(&cells->wideGreatest, static_cast<unsigned long long>(value) * value);
    atomicAnd(&cells->wideAnd, ~(1ull << value % 64));
    greatestDouble(&cells->wideCas, value * 0.5);
    atomicAdd(&cells->floatSum, static_cast<float>(value % 16));
    atomicAdd(&cells->doubleSum, value * 0.25);
}

__global__ void global(Cells *cells, int n, unsigned int *tickets) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    update(cells, i);
    // What is returned is a ticket: each number once.
    unsigned int ticket = atomicAdd(&tickets[n], 1u);
    tickets[ticket] = i;
    atomicExch(&cells->exchanged, static_cast<unsigned int>(i));
}

__global__ void shared(Cells *out, const Cells *start, int n) {
    __shared__ Cells cells;
    if (threadIdx.x == 0) cells = *start;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) update(&cells, i);
    if (threadIdx.x == 0) cells.exchanged = n - 1;
    __syncthreads();
    if (threadIdx.x == 0) *out = cells;
}

void check(const char *where, const Cells &found, const Cells &start, int n) {
    Cells e = start;
    unsigned int sum = 0;
    double greatest = 0;
    for (int i = 0; i < n; i++) {
        unsigned int value = mix(i);
        int number = static_cast<int>(value);
        sum += value;
        e.least = number < e.least ? number : e.least;
        e.greatest = number > e.greatest ? number : e.greatest;
        e.wrapped = e.wrapped >= 100 ? 0 : e.wrapped + 1;
        e.down = e.down == 0 || e.down > 70 ? 70 : e.down - 1;
        e.bitsAnd &= value | 0x00ff00ffu;
        e.bitsOr |= value & 0x0f0f0f0fu;
        e.bitsXor ^= value;
        e.wideSum += static_cast<unsigned long long>(value) << 20;
        unsigned long long square = static_cast<unsigned long long>(value) * value;
        e.wideGreatest = square > e.wideGreatest ? square : e.wideGreatest;
        e.wideAnd &= ~(1ull << value % 64);
        greatest = value * 0.5 > greatest ? value * 0.5 : greatest;
        e.floatSum += static_cast<float>(value % 16);  // whole numbers below 2^24: exact in any order
        e.doubleSum += value * 0.25;
    }
    double wide;
    std::memcpy(&wide, &found.wideCas, sizeof wide);
    expect(found.sum == static_cast<int>(sum), "%s add %d", where, found.sum);
    expect(found.least == e.least && found.greatest == e.greatest, "%s min %d max %d", where, found.least, found.greatest);
    expect(found.wrapped == e.wrapped && found.down == e.down, "%s inc %u dec %u", where, found.wrapped, found.down);
    expect(found.bitsAnd == e.bitsAnd && found.bitsOr == e.bitsOr && found.bitsXor == e.bitsXor, "%s bits %x %x %x", where,
           found.bitsAnd, found.bitsOr, found.bitsXor);
    expect(found.wideSum == e.wideSum && found.wideGreatest == e.wideGreatest && found.wideAnd == e.wideAnd,
           "%s wide %llx %llx %llx", where, found.wideSum, found.wideGreatest, found.wideAnd);
    expect(wide == greatest, "%s cas %g, expected %g", where, wide, greatest);
    expect(found.floatSum == e.floatSum && found.doubleSum == e.doubleSum, "%s float %g double %g", where, found.floatSum,
           found.doubleSum);
    expect(found.exchanged < static_cast<unsigned int>(n), "%s exchange %u", where, found.exchanged);
}

int main() {
    const int n = 10000;
    Cells start = {0, 1 << 30, -(1 << 30), 0, 0, ~0u, 0, 0, 0, 0, 0, ~0ull, 0, 0, 0};
    Cells *cells = upload(std::vector<Cells>{start, start, start});
    unsigned int *tickets = upload(std::vector<unsigned int>(n + 1, 0));
    global<<<(n + 255) / 256, 256>>>(cells, n, tickets);
    shared<<<1, 512>>>(cells + 1, cells + 2, n);
    CHECK(cudaGetLastError());
    std::vector<Cells> found = download(cells, 2);
    check("global", found[0], start, n);
    check("shared", found[1], start, n);
    std::vector<unsigned int> taken = download(tickets, n + 1);
    std::vector<int> seen(n, 0);
    for (int i = 0; i < n; i++)
        if (expect(taken[i] < n, "ticket %d has %u", i, taken[i])) seen[taken[i]]++;
    for (int i = 0; i < n; i++) expect(seen[i] == 1, "thread %d has %d tickets", i, seen[i]);
    expect(taken[n] == n, "%u tickets", taken[n]);
    std::printf("atomics n=%d xor=%x\n", n, found[0].bitsXor);
    return verdict();
}
