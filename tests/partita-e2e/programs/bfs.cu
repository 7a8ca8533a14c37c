// Breadth-first search over a random graph in CSR form, level by level with a frontier queue that threads fill by
// atomics.
#include <queue>

#include "check.h"

__global__ void expand(const int *offsets, const int *targets, const int *frontier, int frontierSize, int *distances,
                       int level, int *next, int *nextSize) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= frontierSize) return;
    int vertex = frontier[i];
    for (int edge = offsets[vertex]; edge < offsets[vertex + 1]; edge++) {
        int target = targets[edge];
        if (atomicCAS(&distances[target], -1, level + 1) == -1) next[atomicAdd(nextSize, 1)] = target;
    }
}

int main() {
    const int vertices = 20000;
    Random random;
    std::vector<int> offsets(vertices + 1, 0), targets;
    for (int v = 0; v < vertices; v++) {
        // Skewed degrees; a sixteenth of the vertices has no way out, and nobody points to the last hundred.
        int degree = v % 16 == 5 ? 0 : v % 97 == 0 ? 60 : 2 + static_cast<int>(random.below(4));
        for (int e = 0; e < degree; e++) targets.push_back(static_cast<int>(random.below(vertices - 100)));
        offsets[v + 1] = static_cast<int>(targets.size());
    }

    std::vector<int> expected(vertices, -1);
    std::queue<int> queue;
    expected[0] = 0;
    queue.push(0);
    while (!queue.empty()) {
        int v = queue.front();
        queue.pop();
        for (int e = offsets[v]; e < offsets[v + 1]; e++) {
            if (expected[targets[e]] >= 0) continue;
            expected[targets[e]] = expected[v] + 1;
            queue.push(targets[e]);
        }
    }

    int *dOffsets = upload(offsets), *dTargets = upload(targets);
    std::vector<int> distances(vertices, -1);
    distances[0] = 0;
    int *dDistances = upload(distances), *frontier = blank<int>(vertices), *next = blank<int>(vertices);
    int *nextSize = blank<int>(1), size = 1, reached = 0, levels = 0;
    CHECK(cudaMemset(frontier, 0, sizeof(int)));
    while (size > 0) {
        reached += size;
        CHECK(cudaMemset(nextSize, 0, sizeof(int)));
        expand<<<(size + 127) / 128, 128>>>(dOffsets, dTargets, frontier, size, dDistances, levels++, next, nextSize);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&size, nextSize, sizeof(int), cudaMemcpyDeviceToHost));
        std::swap(frontier, next);
    }
    std::vector<int> found = download(dDistances, vertices);
    int expectedReached = 0;
    for (int v = 0; v < vertices; v++) {
        expectedReached += expected[v] >= 0;
        expect(found[v] == expected[v], "vertex %d: %d, expected %d", v, found[v], expected[v]);
    }
    expect(reached == expectedReached, "reached %d, expected %d", reached, expectedReached);
    std::printf("bfs vertices=%d edges=%zu reached=%d levels=%d\n", vertices, targets.size(), reached, levels);
    return verdict();
}
