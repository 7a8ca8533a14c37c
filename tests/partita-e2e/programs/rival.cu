// One of two rivals for SMs, in one long-running launch: `compute` evaluates polynomials, and `memory` moves arrays that no
// LLC holds.  Usage: rival compute|memory held
// The launch computes its words again and again, and ends when standard input ends.
#include "check.h"
#include "held.h"

constexpr unsigned THREADS = 256, EACH = 16, BLOCKS = 96, ROUNDS = 4, DEGREE = 200;

__host__ __device__ inline unsigned evaluate(unsigned x) {
    unsigned value = 1, coefficient = 1;
    for (unsigned k = 0; k < DEGREE; k++) {
        coefficient = coefficient * 1664525u + 1013904223u;
        value = value * x + coefficient;
    }
    return value;
}

__host__ __device__ inline unsigned combine(unsigned a, unsigned b) { return a * 3u + b; }

// Whether a block behind the first rounds has nothing to do. One thread asks, because host memory is far.
__device__ bool is_enough(const volatile int *enough) {
    __shared__ int found;
    if (threadIdx.x == 0) found = blockIdx.x >= ROUNDS * BLOCKS && *enough;
    __syncthreads();
    return found;
}

__global__ void compute(unsigned *out, const volatile int *enough) {
    if (is_enough(enough)) return;
    unsigned i = blockIdx.x % BLOCKS * THREADS + threadIdx.x;
    out[i] = evaluate(2u * i + 1u);
}

__global__ void move(unsigned *out, const unsigned *a, const unsigned *b, const volatile int *enough) {
    if (is_enough(enough)) return;
    unsigned first = blockIdx.x % BLOCKS * (THREADS * EACH) + threadIdx.x;
    for (unsigned i = first; i < first + THREADS * EACH; i += THREADS) out[i] = combine(a[i], b[i]);
}

int main(int argc, char **argv) {
    bool computes = argc > 1 && std::strcmp(argv[1], "compute") == 0;
    unsigned words = THREADS * BLOCKS * (computes ? 1 : EACH);
    std::vector<unsigned> a(words), b(words);
    for (unsigned i = 0; i < words; i++) a[i] = i * 2654435761u, b[i] = i ^ 77u;
    unsigned *deviceA = upload(a), *deviceB = upload(b), *out = blank<unsigned>(words);
    Hold hold;
    CHECK(cudaHostAlloc(&hold.enough, sizeof(int), cudaHostAllocMapped));
    hold.begin();
    if (computes) {
        compute<<<HELD_BLOCKS, THREADS>>>(out, hold.enough);
    } else {
        move<<<HELD_BLOCKS, THREADS>>>(out, deviceA, deviceB, hold.enough);
    }
    CHECK(cudaGetLastError());
    std::vector<unsigned> found = download(out, words);
    for (unsigned i = 0; i < words; i++) {
        unsigned wanted = computes ? evaluate(2u * i + 1u) : combine(a[i], b[i]);
        expect(found[i] == wanted, "%u: %x, expected %x", i, found[i], wanted);
    }
    std::printf("rival words=%u\n", words);
    return verdict();
}
