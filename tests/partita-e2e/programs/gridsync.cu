// A cooperative launch: all blocks meet at a grid-wide barrier between the steps of one kernel.
#include <cooperative_groups.h>

#include "check.h"

namespace groups = cooperative_groups;

const int STEPS = 6;

// Each step, every element becomes the sum of itself and its neighbour 2^step further on: any block that ran ahead would
// read old or new values at the wrong time.
__global__ void doubling(unsigned int *a, unsigned int *b, int n) {
    groups::grid_group grid = groups::this_grid();
    unsigned int *from = a, *to = b;
    for (int step = 0; step < STEPS; step++) {
        for (int i = grid.thread_rank(); i < n; i += grid.size()) to[i] = from[i] * 3 + from[(i + (1 << step)) % n];
        grid.sync();
        unsigned int *other = from;
        from = to;
        to = other;
    }
}

int main() {
    int device, supported, processors, perProcessor;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, device));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&perProcessor, doubling, 128, 0));
    expect(supported == 1, "cooperative launches are not supported");
    expect(perProcessor >= 1, "no block fits");
    int blocks = processors * (perProcessor > 2 ? 2 : perProcessor), n = 20011;
    std::vector<unsigned int> values(n), next(n);
    Random random;
    for (unsigned int &value : values) value = random.next();
    unsigned int *a = upload(values), *b = blank<unsigned int>(n);
    void *arguments[] = {&a, &b, &n};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(doubling), dim3(blocks), dim3(128), arguments, 0, nullptr));
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned int> found = download(STEPS % 2 == 0 ? a : b, n);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < n; i++) next[i] = values[i] * 3 + values[(i + (1 << step)) % n];
        std::swap(values, next);
    }
    for (int i = 0; i < n; i++) expect(found[i] == values[i], "%d: %u, expected %u", i, found[i], values[i]);

    // More blocks than can be resident at once are refused.
    cudaError_t refused = cudaLaunchCooperativeKernel(reinterpret_cast<void *>(doubling),
                                                      dim3(processors * perProcessor + 1), dim3(128), arguments, 0, nullptr);
    expect(refused == cudaErrorCooperativeLaunchTooLarge, "too large: %s", cudaGetErrorName(refused));
    cudaGetLastError();
    std::printf("gridsync n=%d steps=%d first=%u\n", n, STEPS, found[0]);
    return verdict();
}
