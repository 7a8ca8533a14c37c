// Many clusters of CTAs in long launches: each CTA mixes its numbers with those of the next CTA of its cluster, round
// after round. One kernel requires its clusters, the other one has them from its launch and reads where it stands.
// nvcc: -arch=compute_90
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

constexpr int THREADS = 64, ROUNDS = 60;

__device__ uint32_t mix(uint32_t own, uint32_t next, int round) { return own * 3 + next + round; }

// The numbers of all CTAs of a cluster go round.
__device__ uint32_t turn(uint32_t number) {
    __shared__ uint32_t cell[2][THREADS];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    for (int round = 0; round < ROUNDS; ++round) {
        cell[round & 1][threadIdx.x] = number;
        cluster.sync();
        number = mix(number, cluster.map_shared_rank(cell[round & 1], next)[threadIdx.x], round);
    }
    cluster.sync();
    return number;
}

__global__ void __cluster_dims__(2, 2, 1) required(uint32_t *out) {
    unsigned linear = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[linear * THREADS + threadIdx.x] = turn(linear * 7 + threadIdx.x);
}

// The place follows from the cluster's index and the CTA's in it.
__global__ void asked(uint32_t *out) {
    cg::cluster_group cluster = cg::this_cluster();
    dim3 id, in, of = cluster.dim_blocks();
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(id.x));
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(id.y));
    asm("mov.u32 %0, %%clusterid.z;" : "=r"(id.z));
    in = cluster.block_index();
    unsigned x = id.x * of.x + in.x, y = id.y * of.y + in.y, z = id.z * of.z + in.z;
    unsigned linear = (z * gridDim.y + y) * gridDim.x + x;
    out[linear * THREADS + threadIdx.x] = turn(linear * 7 + threadIdx.x);
}

void check(const char *name, const std::vector<uint32_t> &out, dim3 grid, dim3 cluster) {
    unsigned count = cluster.x * cluster.y * cluster.z;
    std::vector<unsigned> linear(count);
    std::vector<uint32_t> now(count), then(count);
    for (unsigned first = 0; first < grid.x * grid.y * grid.z / count; ++first) {
        unsigned wide = grid.x / cluster.x, high = grid.y / cluster.y;
        unsigned id[3] = {first % wide, first / wide % high, first / wide / high};
        for (unsigned rank = 0; rank < count; ++rank) {
            unsigned x = id[0] * cluster.x + rank % cluster.x, y = id[1] * cluster.y + rank / cluster.x % cluster.y;
            unsigned z = id[2] * cluster.z + rank / cluster.x / cluster.y;
            linear[rank] = (z * grid.y + y) * grid.x + x;
        }
        for (unsigned thread = 0; thread < THREADS; ++thread) {
            for (unsigned rank = 0; rank < count; ++rank) now[rank] = linear[rank] * 7 + thread;
            for (int round = 0; round < ROUNDS; ++round) {
                for (unsigned rank = 0; rank < count; ++rank)
                    then[rank] = now[rank] * 3 + now[(rank + 1) % count] + round;
                now = then;
            }
            for (unsigned rank = 0; rank < count; ++rank)
                expect(out[linear[rank] * THREADS + thread] == now[rank], "%s: CTA %u, thread %u", name, linear[rank],
                       thread);
        }
    }
}

int main() {
    dim3 grid(8, 8, 12);
    size_t numbers = size_t(grid.x) * grid.y * grid.z * THREADS;
    uint32_t *out = blank<uint32_t>(numbers);
    required<<<grid, THREADS>>>(out);
    CHECK(cudaGetLastError());
    check("required", download(out, numbers), grid, dim3(2, 2, 1));
    for (dim3 cluster : {dim3(1, 1, 1), dim3(2, 1, 1), dim3(1, 2, 3), dim3(2, 2, 2)}) {
        CHECK(cudaMemset(out, 0xff, numbers * sizeof(uint32_t)));
        cudaLaunchConfig_t config = {};
        config.gridDim = grid;
        config.blockDim = THREADS;
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
        config.attrs = &attribute;
        config.numAttrs = 1;
        CHECK(cudaLaunchKernelEx(&config, asked, out));
        check("asked", download(out, numbers), grid, cluster);
    }

    // As a node of a graph, whose clusters come after it.
    CHECK(cudaMemset(out, 0xff, numbers * sizeof(uint32_t)));
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    void *arguments[] = {&out};
    cudaKernelNodeParams node = {};
    node.func = reinterpret_cast<void *>(asked);
    node.gridDim = grid;
    node.blockDim = THREADS;
    node.kernelParams = arguments;
    cudaGraphNode_t kernel;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &node));
    cudaKernelNodeAttrValue value = {};
    value.clusterDim = {3, 1, 1};
    CHECK(cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributeClusterDimension, &value));
    cudaGraphExec_t executable;
    expect(cudaGraphInstantiate(&executable, graph, 0) == cudaErrorInvalidClusterSize,
           "clusters that do not fill the grid of a node are refused");
    cudaGetLastError();
    value.clusterDim = {4, 1, 2};
    CHECK(cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributeClusterDimension, &value));
    value = {};
    CHECK(cudaGraphKernelNodeGetAttribute(kernel, cudaLaunchAttributeClusterDimension, &value));
    expect(value.clusterDim.x == 4 && value.clusterDim.z == 2, "the clusters of a node");
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, 0));
    check("node", download(out, numbers), grid, dim3(4, 1, 2));
    std::printf("cluster_ring %u CTAs in clusters of 1 to 8\n", grid.x * grid.y * grid.z);
    return verdict();
}
