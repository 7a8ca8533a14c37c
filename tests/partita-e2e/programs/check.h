// What the programs of the gallery share: errors of CUDA that end the program, reproducible input, counted comparisons
// and one way to end.  Nothing in here knows what it runs on.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        cudaError_t error_ = (call);                                                                 \
        if (error_ != cudaSuccess) {                                                                 \
            std::fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,                  \
                         cudaGetErrorName(error_), cudaGetErrorString(error_));                      \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

// Marsaglia's xorshift64*: the same numbers everywhere.
struct Random {
    uint64_t state = 0x9e3779b97f4a7c15ull;
    uint32_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<uint32_t>((state * 0x2545f4914f6cdd1dull) >> 32);
    }
    uint32_t below(uint32_t bound) { return next() % bound; }
    float unit() { return static_cast<float>(next() >> 8) * 0x1p-24f; }  // in [0, 1), exact
};

inline int failures = 0;

// Counts a comparison that failed and prints the first few.
__attribute__((format(printf, 2, 3))) inline bool expect(bool holds, const char *format, ...) {
    if (holds) return true;
    if (failures++ < 5) {
        std::va_list arguments;
        va_start(arguments, format);
        std::printf("wrong: ");
        std::vprintf(format, arguments);
        std::printf("\n");
        va_end(arguments);
    }
    return false;
}

// |actual - expected| <= tolerance * max(1, |expected|); a NaN is never close.
inline bool close(double actual, double expected, double tolerance) {
    return std::fabs(actual - expected) <= tolerance * std::fmax(1.0, std::fabs(expected));
}

template <class T>
T *upload(const std::vector<T> &host) {
    T *device;
    CHECK(cudaMalloc(&device, host.size() * sizeof(T)));
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

template <class T>
std::vector<T> download(const T *device, size_t count) {
    std::vector<T> host(count);
    CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// Memory of `count` elements whose bytes are all 0xff, so that what nobody wrote is seen.
template <class T>
T *blank(size_t count) {
    T *device;
    CHECK(cudaMalloc(&device, count * sizeof(T)));
    CHECK(cudaMemset(device, 0xff, count * sizeof(T)));
    return device;
}

// The last line of every program, and its exit code.
inline int verdict() {
    if (failures != 0) {
        std::printf("FAILED: %d comparisons\n", failures);
        return 1;
    }
    std::printf("PASSED\n");
    return 0;
}
