// Cooperative groups below the grid: tiles of a warp, coalesced threads, partitions by label, and reductions over them.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "check.h"

namespace groups = cooperative_groups;

struct Results {
    int tileSum, tileGreatest, rank, coalescedSize, coalescedSum, shuffled, ballot;
};

__global__ void tiles(const int *values, Results *out, int *counter, int *places) {
    groups::thread_block block = groups::this_thread_block();
    groups::thread_block_tile<8> tile = groups::tiled_partition<8>(block);
    int i = block.group_index().x * block.size() + block.thread_rank(), value = values[i];
    Results r = {};
    r.tileSum = groups::reduce(tile, value, groups::plus<int>());
    r.tileGreatest = groups::reduce(tile, value, groups::greater<int>());
    r.rank = static_cast<int>(tile.thread_rank() + 100 * tile.meta_group_rank());
    r.shuffled = tile.shfl_xor(value, 5);
    r.ballot = static_cast<int>(tile.ballot(value % 2));
    if (value % 3 == 0) {
        groups::coalesced_group active = groups::coalesced_threads();
        r.coalescedSize = static_cast<int>(active.size());
        r.coalescedSum = groups::reduce(active, value, groups::plus<int>());
        // One atomic for all that are here, the rest by rank.
        int first = 0;
        if (active.thread_rank() == 0) first = atomicAdd(counter, static_cast<int>(active.size()));
        places[active.shfl(first, 0) + active.thread_rank()] = i;
    }
    block.sync();
    out[i] = r;
}

int main() {
    const int blocks = 10, size = 96, n = blocks * size;
    Random random;
    std::vector<int> values(n);
    for (int &value : values) value = static_cast<int>(random.below(1000));
    Results *out = blank<Results>(n);
    int *counter = upload(std::vector<int>{0}), *places = blank<int>(n);
    tiles<<<blocks, size>>>(upload(values), out, counter, places);
    CHECK(cudaGetLastError());
    std::vector<Results> found = download(out, n);
    int total = 0;
    for (int i = 0; i < n; i++) {
        int first = i / 8 * 8, sum = 0, greatest = 0, ballot = 0, size8 = 0, sum32 = 0;
        for (int k = 0; k < 8; k++) {
            sum += values[first + k];
            greatest = values[first + k] > greatest ? values[first + k] : greatest;
            ballot |= values[first + k] % 2 << k;
        }
        for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++)
            if (values[k] % 3 == 0) {
                size8++;
                sum32 += values[k];
            }
        bool third = values[i] % 3 == 0;
        total += third;
        const Results &r = found[i];
        expect(r.tileSum == sum && r.tileGreatest == greatest && r.ballot == ballot, "tile of %d: %d %d %x", i, r.tileSum,
               r.tileGreatest, static_cast<unsigned int>(r.ballot));
        expect(r.rank == i % 8 + 100 * (i % size / 8), "rank of %d: %d", i, r.rank);
        expect(r.shuffled == values[first + (i % 8 ^ 5)], "shuffle of %d: %d", i, r.shuffled);
        // Which threads run together is the hardware's choice, but never fewer than the thread itself.
        if (third) expect(r.coalescedSize >= 1 && r.coalescedSize <= size8 && r.coalescedSum <= sum32, "coalesced %d", i);
    }
    expect(download(counter, 1)[0] == total, "%d places taken, expected %d", download(counter, 1)[0], total);
    std::vector<int> taken = download(places, total), seen(n, 0);
    for (int place : taken)
        if (expect(place >= 0 && place < n, "place %d", place)) seen[place]++;
    for (int i = 0; i < n; i++) expect(seen[i] == (values[i] % 3 == 0), "%d has %d places", i, seen[i]);
    std::printf("groups n=%d thirds=%d\n", n, total);
    return verdict();
}
