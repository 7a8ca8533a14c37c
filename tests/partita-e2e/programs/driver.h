// The driver's functions for programs that link the runtime only, and their errors.
#pragma once

#include "check.h"
#include <cuda.h>

#define DRIVER(call)                                                                                 \
    do {                                                                                             \
        CUresult result_ = (call);                                                                   \
        if (result_ != CUDA_SUCCESS) {                                                               \
            std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result_);             \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

template <class F>
F entry(const char *name, unsigned version) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
    if (function == nullptr) {
        std::fprintf(stderr, "%s cannot be found\n", name);
        std::exit(1);
    }
    return reinterpret_cast<F>(function);
}
#define USE(name) auto name = entry<decltype(&::name)>(#name, 12000)
// The same as a member.
#define USE_MEMBER(name) decltype(&::name) name = entry<decltype(&::name)>(#name, 12000)
