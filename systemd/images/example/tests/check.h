// What the tests need of a test framework.
#pragma once
#include <cstdio>
#include <cstdlib>

// Ends the test where a call of CUDA fails.
#define CUDA(call)                                                                                   \
    do {                                                                                             \
        cudaError_t error = (call);                                                                  \
        if (error != cudaSuccess) {                                                                  \
            std::printf("FAILED %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

// Ends the test where a condition does not hold.
#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            std::printf("FAILED %s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)
