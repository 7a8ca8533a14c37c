// Grids and blocks in three dimensions with odd shapes: every thread reports where it is, once.
#include "check.h"

struct Place {
    uint3 block, thread;
    unsigned int grid, size, warp, lane;
};

__global__ void report(Place *places, unsigned int *visits) {
    unsigned int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned int size = blockDim.x * blockDim.y * blockDim.z, i = block * size + thread, warp, lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    places[i] = {blockIdx, threadIdx, gridDim.x * gridDim.y * gridDim.z, size, warp, lane};
    atomicAdd(&visits[i], 1u);
}

void run(dim3 grid, dim3 block) {
    unsigned int blocks = grid.x * grid.y * grid.z, size = block.x * block.y * block.z, n = blocks * size;
    Place *places = blank<Place>(n);
    unsigned int *visits = upload(std::vector<unsigned int>(n, 0));
    report<<<grid, block>>>(places, visits);
    CHECK(cudaGetLastError());
    std::vector<Place> found = download(places, n);
    std::vector<unsigned int> counts = download(visits, n);
    unsigned int i = 0;
    for (unsigned int bz = 0; bz < grid.z; bz++)
        for (unsigned int by = 0; by < grid.y; by++)
            for (unsigned int bx = 0; bx < grid.x; bx++)
                for (unsigned int tz = 0; tz < block.z; tz++)
                    for (unsigned int ty = 0; ty < block.y; ty++)
                        for (unsigned int tx = 0; tx < block.x; tx++, i++) {
                            const Place &p = found[i];
                            bool here = p.block.x == bx && p.block.y == by && p.block.z == bz && p.thread.x == tx &&
                                        p.thread.y == ty && p.thread.z == tz && p.grid == blocks && p.size == size;
                            expect(here && counts[i] == 1, "thread %u of (%u,%u,%u) x (%u,%u,%u): %u visits", i, grid.x,
                                   grid.y, grid.z, block.x, block.y, block.z, counts[i]);
                            // Warps are cut from the flat number of a thread in its block.
                            expect(p.lane == i % size % 32, "lane %u of thread %u", p.lane, i % size);
                        }
    CHECK(cudaFree(places));
    CHECK(cudaFree(visits));
    std::printf("odd_grid (%u,%u,%u) x (%u,%u,%u)\n", grid.x, grid.y, grid.z, block.x, block.y, block.z);
}

int main() {
    run(dim3(1), dim3(1));
    run(dim3(3, 5, 7), dim3(2, 3, 5));
    run(dim3(1, 1, 33), dim3(1, 1, 64));
    run(dim3(2, 1, 9), dim3(33, 1, 3));
    run(dim3(1, 300, 1), dim3(7, 11, 1));
    run(dim3(1001, 1, 2), dim3(1, 37, 1));
    run(dim3(2, 2, 2), dim3(1024, 1, 1));
    run(dim3(1, 1, 1), dim3(16, 8, 8));
    return verdict();
}
