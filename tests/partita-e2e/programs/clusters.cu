// Clusters of CTAs: a histogram whose bins are spread over the shared memory of a cluster, a ring in which CTAs send
// their rows on by bulk copies, and a product row that one CTA's copy brings to all CTAs of its cluster.
// nvcc: -gencode arch=compute_90a,code=compute_90a
#include <cooperative_groups.h>
#include <cuda.h>

#include <vector>

#include "check.h"

namespace cg = cooperative_groups;

const int BINS = 1000, VALUES = 40000, THREADS = 192;

// Each CTA of a cluster has a part of the bins; the extent of the cluster comes with the launch.
__global__ void histogram(const int *values, int count, int *bins, int perCta) {
    extern __shared__ int part[];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < perCta; i += blockDim.x) part[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        int bin = values[i];
        int *there = cluster.map_shared_rank(part, bin / perCta);
        atomicAdd(there + bin % perCta, 1);
    }
    cluster.sync();
    int first = cluster.block_rank() * perCta;
    for (int i = threadIdx.x; i < perCta; i += blockDim.x)
        if (first + i < BINS) atomicAdd(&bins[first + i], part[i]);
}

__device__ uint32_t place(const void *shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

__device__ void wait(const uint64_t *barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(
            place(barrier)),
        "r"(parity)
        : "memory");
}

const int ROW = 256, ROUNDS = 5;

// Each CTA sends its row to the next of its cluster, round after round; two buffers, so nobody overwrites what is read.
__global__ void __cluster_dims__(2, 2, 1) ring(uint32_t *out) {
    __shared__ alignas(128) uint32_t rows[2][ROW];
    __shared__ uint64_t arrived[2];
    cg::cluster_group cluster = cg::this_cluster();
    const uint32_t rank = cluster.block_rank(), next = (rank + 1) % cluster.num_blocks();
    const uint32_t cta = blockIdx.y * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&arrived[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = threadIdx.x; i < ROW; i += blockDim.x) rows[0][i] = cta * 1000 + i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    cluster.sync();
    for (int round = 0; round < ROUNDS; round++) {
        const int from = round & 1, to = from ^ 1;
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(&arrived[to])), "r"(ROW * 4)
                         : "memory");
            uint32_t target, barrier;
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(target) : "r"(place(rows[to])), "r"(next));
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(place(&arrived[to])), "r"(next));
            asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             target),
                         "r"(place(rows[from])), "r"(ROW * 4), "r"(barrier)
                         : "memory");
        }
        wait(&arrived[to], round >> 1 & 1);
        for (int i = threadIdx.x; i < ROW; i += blockDim.x) rows[to][i] += rank;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        cluster.sync();
    }
    for (int i = threadIdx.x; i < ROW; i += blockDim.x) out[cta * ROW + i] = rows[ROUNDS & 1][i];
}

// Rank 0 copies a row to all CTAs of the cluster at once.
__global__ void spread(const uint32_t *in, uint32_t *out) {
    __shared__ alignas(128) uint32_t row[ROW];
    __shared__ uint64_t arrived;
    cg::cluster_group cluster = cg::this_cluster();
    const uint32_t rank = cluster.block_rank(), count = cluster.num_blocks();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&arrived)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(&arrived)), "r"(ROW * 4) : "memory");
    }
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
                place(row)),
            "l"(in + blockIdx.x / count * ROW), "r"(ROW * 4), "r"(place(&arrived)), "h"(uint16_t((1 << count) - 1))
            : "memory");
    }
    wait(&arrived, 0);
    for (int i = threadIdx.x; i < ROW; i += blockDim.x) out[blockIdx.x * ROW + i] = row[i] + rank;
    cluster.sync();
}

template <typename... Formal, typename... Actual>
cudaError_t launch(void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared, dim3 cluster, Actual... actual) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster.x;
    attribute.val.clusterDim.y = cluster.y;
    attribute.val.clusterDim.z = cluster.z;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, Formal(actual)...);
}

int main() {
    int supported = 0;
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrClusterLaunch, 0));
    expect(supported == 1, "the GPU has clusters");

    std::vector<int> values(VALUES), wanted(BINS), bins(BINS);
    for (int i = 0; i < VALUES; i++) wanted[values[i] = int((i * 7919ll + i / 13) % BINS)]++;
    int *deviceValues, *deviceBins;
    CHECK(cudaMalloc(&deviceValues, VALUES * sizeof(int)));
    CHECK(cudaMalloc(&deviceBins, BINS * sizeof(int)));
    CHECK(cudaMemcpy(deviceValues, values.data(), VALUES * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaFuncSetAttribute(histogram, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (int cluster : {1, 2, 4, 8, 16}) {
        CHECK(cudaMemset(deviceBins, 0, BINS * sizeof(int)));
        int perCta = (BINS + cluster - 1) / cluster;
        CHECK(launch(histogram, dim3(16), dim3(THREADS), perCta * sizeof(int), dim3(cluster), deviceValues, VALUES, deviceBins,
                     perCta));
        CHECK(cudaMemcpy(bins.data(), deviceBins, BINS * sizeof(int), cudaMemcpyDeviceToHost));
        expect(bins == wanted, "a histogram over clusters");
    }

    const int width = 6, height = 4;
    uint32_t *deviceOut, *deviceIn;
    CHECK(cudaMalloc(&deviceOut, width * height * ROW * sizeof(uint32_t)));
    CHECK(cudaMalloc(&deviceIn, width * height * ROW * sizeof(uint32_t)));
    std::vector<uint32_t> out(width * height * ROW);
    ring<<<dim3(width, height), 128>>>(deviceOut);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out.data(), deviceOut, out.size() * 4, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int rank = y % 2 * 2 + x % 2, sum = 0;
            // The row began ROUNDS places before, and each place added its rank.
            for (int i = 0; i < ROUNDS; i++) sum += (rank + 4 - i % 4) % 4;
            int source = (rank + 4 - ROUNDS % 4) % 4;
            int from = (y / 2 * 2 + source / 2) * width + x / 2 * 2 + source % 2;
            for (int i = 0; i < ROW; i++)
                expect(out[(y * width + x) * ROW + i] == uint32_t(from * 1000 + i + sum), "a ring of a cluster");
        }

    std::vector<uint32_t> in(width * height * ROW);
    for (size_t i = 0; i < in.size(); i++) in[i] = uint32_t(i * 31);
    CHECK(cudaMemcpy(deviceIn, in.data(), in.size() * 4, cudaMemcpyHostToDevice));
    const int ctas = 24, cluster = 8;
    CHECK(launch(spread, dim3(ctas), dim3(64), 0, dim3(cluster), deviceIn, deviceOut));
    CHECK(cudaMemcpy(out.data(), deviceOut, ctas * ROW * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ctas * ROW; i++)
        expect(out[i] == in[i / ROW / cluster * ROW + i % ROW] + i / ROW % cluster, "a row for all CTAs of a cluster");

    // What fits, and what does not.
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(16);
    config.blockDim = dim3(THREADS);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 8;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int active = 0, largest = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&active, histogram, &config));
    CHECK(cudaOccupancyMaxPotentialClusterSize(&largest, histogram, &config));
    expect(active > 0 && largest >= 8, "clusters fit");
    expect(launch(histogram, dim3(15), dim3(THREADS), 4000, dim3(2), deviceValues, VALUES, deviceBins, 500) ==
                cudaErrorInvalidClusterSize,
            "clusters that do not fill the grid are refused");
    cudaGetLastError();
    // Partita's daemon refuses the launch, so the program may learn of it where it waits.
    cudaError_t refused = launch(ring, dim3(4, 4), dim3(128), 0, dim3(4), deviceOut);
    if (refused == cudaSuccess) refused = cudaDeviceSynchronize();
    expect(refused == cudaErrorInvalidClusterSize, "clusters of another extent than the kernel's are refused");
    std::printf("clusters of 1 to 16 CTAs, %d bins, %d active of 8\n", BINS, active);
    return verdict();
}
