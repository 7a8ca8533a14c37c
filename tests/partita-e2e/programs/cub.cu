// CUB directly: device-wide radix sort, scan, reduction, run lengths, selection and histogram, and block-wide primitives
// inside a kernel.
// nvcc: --extended-lambda
#include <cub/cub.cuh>

#include <algorithm>

#include "check.h"

const int BLOCK = 128, ITEMS = 4;

// Each block sorts its tile, then scans it.
__global__ void blockWide(const int *in, int *sorted, int *scanned, int *greatest) {
    using Load = cub::BlockLoad<int, BLOCK, ITEMS, cub::BLOCK_LOAD_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<int, BLOCK, ITEMS>;
    using Scan = cub::BlockScan<int, BLOCK>;
    using Reduce = cub::BlockReduce<int, BLOCK>;
    using Store = cub::BlockStore<int, BLOCK, ITEMS, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    __shared__ union {
        Load::TempStorage load;
        Sort::TempStorage sort;
        Scan::TempStorage scan;
        Reduce::TempStorage reduce;
        Store::TempStorage store;
    } memory;
    int items[ITEMS], stored[ITEMS], tile = blockIdx.x * BLOCK * ITEMS;
    Load(memory.load).Load(in + tile, items);
    __syncthreads();
    Sort(memory.sort).Sort(items);
    __syncthreads();
    for (int k = 0; k < ITEMS; k++) stored[k] = items[k];  // a transposing store leaves them in another order
    Store(memory.store).Store(sorted + tile, stored);
    __syncthreads();
    int largest = Reduce(memory.reduce).Reduce(items, [](int a, int b) { return a > b ? a : b; });
    if (threadIdx.x == 0) greatest[blockIdx.x] = largest;
    __syncthreads();
    Scan(memory.scan).InclusiveSum(items, items);
    __syncthreads();
    Store(memory.store).Store(scanned + tile, items);
}

// Calls one of CUB's device-wide functions twice, as they want it: for the size of its storage, then for the work.
template <class Function>
void device(Function function) {
    size_t bytes = 0;
    CHECK(function(nullptr, bytes));
    void *storage;
    CHECK(cudaMalloc(&storage, bytes));
    CHECK(function(storage, bytes));
    CHECK(cudaFree(storage));
}

int main() {
    const int tiles = 120, n = tiles * BLOCK * ITEMS;
    Random random;
    std::vector<int> in(n);
    for (int &value : in) value = static_cast<int>(random.below(5000)) - 2500;
    int *din = upload(in), *out = blank<int>(n), *counts = blank<int>(n), *number = blank<int>(1), *block = blank<int>(n);

    device([&](void *storage, size_t &bytes) { return cub::DeviceRadixSort::SortKeysDescending(storage, bytes, din, out, n); });
    std::vector<int> found = download(out, n), sorted = in;
    std::sort(sorted.begin(), sorted.end(), [](int a, int b) { return a > b; });
    for (int i = 0; i < n; i++) expect(found[i] == sorted[i], "sort %d: %d, expected %d", i, found[i], sorted[i]);

    int *sortedKeys = upload(sorted);
    device([&](void *storage, size_t &bytes) {
        return cub::DeviceRunLengthEncode::Encode(storage, bytes, sortedKeys, out, counts, number, n);
    });
    int runs = download(number, 1)[0], run = 0;
    std::vector<int> values = download(out, n), lengths = download(counts, n);
    for (int i = 0; i < n; run++) {
        int length = static_cast<int>(std::find_if(sorted.begin() + i, sorted.end(), [&](int x) { return x != sorted[i]; }) -
                                      sorted.begin()) - i;
        expect(values[run] == sorted[i] && lengths[run] == length, "run %d: %d times %d", run, lengths[run], values[run]);
        i += length;
    }
    expect(runs == run, "%d runs, expected %d", runs, run);

    device([&](void *storage, size_t &bytes) { return cub::DeviceScan::ExclusiveSum(storage, bytes, din, out, n); });
    found = download(out, n);
    int sum = 0;
    for (int i = 0; i < n; i++) {
        expect(found[i] == sum, "scan %d: %d, expected %d", i, found[i], sum);
        sum += in[i];
    }
    device([&](void *storage, size_t &bytes) { return cub::DeviceReduce::Sum(storage, bytes, din, number, n); });
    expect(download(number, 1)[0] == sum, "sum %d, expected %d", download(number, 1)[0], sum);

    device([&](void *storage, size_t &bytes) {
        return cub::DeviceSelect::If(storage, bytes, din, out, number, n, [] __host__ __device__(int x) { return x > 1000; });
    });
    std::vector<int> selected;
    for (int value : in)
        if (value > 1000) selected.push_back(value);
    int count = download(number, 1)[0];
    expect(count == static_cast<int>(selected.size()), "selected %d, expected %zu", count, selected.size());
    found = download(out, selected.size());
    for (size_t i = 0; i < selected.size(); i++) expect(found[i] == selected[i], "selection %zu: %d", i, found[i]);

    device([&](void *storage, size_t &bytes) {
        return cub::DeviceHistogram::HistogramEven(storage, bytes, din, counts, 11, -2500, 2500, n);
    });
    std::vector<int> bins = download(counts, 10), expectedBins(10, 0);
    for (int value : in) expectedBins[(value + 2500) / 500]++;
    for (int i = 0; i < 10; i++) expect(bins[i] == expectedBins[i], "bin %d: %d, expected %d", i, bins[i], expectedBins[i]);

    int *greatest = blank<int>(tiles);
    blockWide<<<tiles, BLOCK>>>(din, out, block, greatest);
    CHECK(cudaGetLastError());
    std::vector<int> blockSorted = download(out, n), blockScanned = download(block, n), largest = download(greatest, tiles);
    for (int tile = 0; tile < tiles; tile++) {
        int first = tile * BLOCK * ITEMS, running = 0;
        std::sort(in.begin() + first, in.begin() + first + BLOCK * ITEMS);
        for (int i = first; i < first + BLOCK * ITEMS; i++) {
            running += in[i];
            expect(blockSorted[i] == in[i] && blockScanned[i] == running, "tile %d, %d: %d %d", tile, i - first, blockSorted[i],
                   blockScanned[i]);
        }
        expect(largest[tile] == in[first + BLOCK * ITEMS - 1], "tile %d: %d", tile, largest[tile]);
    }
    std::printf("cub n=%d runs=%d sum=%d selected=%d\n", n, runs, sum, count);
    return verdict();
}
