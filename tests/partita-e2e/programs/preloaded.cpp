// A library that is preloaded beside Partita's, as tools are: it stands before the allocator and a function of the driver's,
// and says at the end whether it was in between.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cuda.h>
#include <dlfcn.h>

extern "C" void *__libc_malloc(size_t bytes);
extern "C" void __libc_free(void *memory);

static std::atomic<long> allocations, synchronisations;

extern "C" void *malloc(size_t bytes) {
    allocations++;
    return __libc_malloc(bytes);
}

extern "C" void free(void *memory) { __libc_free(memory); }

extern "C" CUresult cuCtxSynchronize() {
    synchronisations++;
    return reinterpret_cast<CUresult (*)()>(dlsym(RTLD_NEXT, "cuCtxSynchronize"))();
}

__attribute__((destructor)) static void report() {
    std::fprintf(stderr, "preloaded: allocations %d synchronisations %d\n", allocations > 0, synchronisations > 0);
}
