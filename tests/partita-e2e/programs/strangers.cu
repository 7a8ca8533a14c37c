// Kernels that nobody here wrote: algorithms of Thrust and CUB on two million elements, far more CTAs than a GPU holds at once.
// Their results are compared with each other where that is easy, so that a wrong one is noticed.
#include "check.h"
#include <cstdio>
#include <cub/cub.cuh>
#include <thrust/adjacent_difference.h>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/gather.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/remove.h>
#include <thrust/reverse.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/tabulate.h>
#include <thrust/transform_reduce.h>
#include <thrust/unique.h>

static const int N = 1 << 21;
struct Mix {
    __host__ __device__ unsigned operator()(unsigned x) const {
        x *= 0x9e3779b9u;
        x ^= x >> 15;
        return x * 0x85ebca6bu;
    }
};
struct Odd {
    __host__ __device__ bool operator()(unsigned x) const { return x & 1; }
};
struct ByLowHalf {
    __host__ __device__ bool operator()(unsigned a, unsigned b) const { return (a & 0xffff) < (b & 0xffff); }
};
struct Square {
    __host__ __device__ float operator()(unsigned x) const { return (x & 255) * 0.5f; }
};

template <typename Call> static void with_storage(Call call) {
    size_t bytes = 0;
    CHECK(call(nullptr, bytes));
    thrust::device_vector<char> storage(bytes);
    CHECK(call(thrust::raw_pointer_cast(storage.data()), bytes));
}

int main() {
    thrust::device_vector<unsigned> keys(N), other(N), values(N), out(N), wide(2 * N);
    thrust::tabulate(keys.begin(), keys.end(), Mix());
    thrust::sequence(values.begin(), values.end());
    auto key = thrust::raw_pointer_cast(keys.data());
    auto to = thrust::raw_pointer_cast(out.data());

    unsigned sum = thrust::reduce(keys.begin(), keys.end());
    thrust::inclusive_scan(keys.begin(), keys.end(), out.begin());
    expect(out[N - 1] == sum, "scan");
    long odd = thrust::count_if(keys.begin(), keys.end(), Odd());
    long kept = thrust::copy_if(keys.begin(), keys.end(), out.begin(), Odd()) - out.begin();
    expect(odd == kept, "copy_if");
    expect(thrust::stable_partition_copy(keys.begin(), keys.end(), out.begin(), other.begin(), Odd()).first - out.begin() == odd,
           "partition");
    expect(thrust::transform_reduce(keys.begin(), keys.end(), Square(), 0.0f, thrust::plus<float>()) > 0, "transform_reduce");
    expect(thrust::inner_product(keys.begin(), keys.end(), keys.begin(), 0u) != 0, "inner_product");
    auto ends = thrust::minmax_element(keys.begin(), keys.end());
    expect(*ends.first < *ends.second, "minmax");
    thrust::adjacent_difference(keys.begin(), keys.end(), out.begin());
    expect(out[1] == (unsigned)keys[1] - (unsigned)keys[0], "adjacent_difference");

    other = keys;
    thrust::sort(other.begin(), other.end());
    expect(other[N - 1] == *ends.second, "sort");
    out = keys;
    thrust::stable_sort(out.begin(), out.end(), ByLowHalf());
    expect(thrust::is_sorted(out.begin(), out.end(), ByLowHalf()), "merge sort");
    out = keys;
    thrust::sort_by_key(out.begin(), out.end(), values.begin());
    thrust::gather(values.begin(), values.end(), keys.begin(), wide.begin());
    expect(thrust::equal(out.begin(), out.end(), wide.begin()), "gather");
    thrust::scatter(out.begin(), out.end(), values.begin(), wide.begin());
    expect(thrust::equal(keys.begin(), keys.end(), wide.begin()), "scatter");
    thrust::merge(other.begin(), other.end(), out.begin(), out.end(), wide.begin());
    expect(wide[2 * N - 1] == *ends.second, "merge");
    long both = thrust::set_intersection(other.begin(), other.end(), out.begin(), out.end(), wide.begin()) - wide.begin();
    expect(both == N, "set_intersection");
    thrust::lower_bound(other.begin(), other.end(), keys.begin(), keys.end(), values.begin());
    expect(other[values[5]] == keys[5], "lower_bound");
    thrust::transform(keys.begin(), keys.end(), out.begin(), [] __host__ __device__(unsigned x) { return x >> 20; });
    thrust::sort(out.begin(), out.end());
    long groups = thrust::reduce_by_key(out.begin(), out.end(), keys.begin(), wide.begin(), values.begin()).first - wide.begin();
    thrust::exclusive_scan_by_key(out.begin(), out.end(), keys.begin(), values.begin());
    expect(thrust::unique(out.begin(), out.end()) - out.begin() == groups, "unique");
    thrust::reverse(keys.begin(), keys.end());

    thrust::device_vector<int> bins(256), offsets(N / 64 + 1), lengths(N), runs(1);
    auto bin = thrust::raw_pointer_cast(bins.data());
    auto bytes = reinterpret_cast<unsigned char *>(key);
    with_storage([&](void *at, size_t &size) { return cub::DeviceHistogram::HistogramEven(at, size, bytes, bin, 257, 0, 256, N); });
    expect(thrust::reduce(bins.begin(), bins.end()) == N, "histogram");
    thrust::sequence(offsets.begin(), offsets.end(), 0, 64);
    auto offset = thrust::raw_pointer_cast(offsets.data());
    with_storage([&](void *at, size_t &size) { return cub::DeviceSegmentedReduce::Sum(at, size, key, to, N / 64, offset, offset + 1); });
    expect(thrust::reduce(out.begin(), out.begin() + N / 64) == sum, "segmented reduce");
    with_storage([&](void *at, size_t &size) {
        return cub::DeviceRunLengthEncode::Encode(at, size, key, to, thrust::raw_pointer_cast(lengths.data()),
                                                  thrust::raw_pointer_cast(runs.data()), N);
    });
    expect(runs[0] > N / 2, "run lengths");
    with_storage([&](void *at, size_t &size) { return cub::DeviceRadixSort::SortKeysDescending(at, size, key, to, N, 0, 16); });
    CHECK(cudaDeviceSynchronize());
    std::puts(failures ? "FAILED" : "PASSED");
    return failures ? 1 : 0;
}
