// Thrust's reductions: sums, extremes, transformed and by key, counts and inner products.
#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/functional.h>
#include <thrust/inner_product.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/transform_reduce.h>

#include "check.h"

struct Absolute {
    __host__ __device__ long long operator()(int x) const { return x < 0 ? -static_cast<long long>(x) : x; }
};

struct Odd {
    __host__ __device__ bool operator()(int x) const { return x % 2 != 0; }
};

int main() {
    const int n = 150001;
    Random random;
    std::vector<int> in(n), keys(n);
    std::vector<double> weights(n);
    long long sum = 0, absolute = 0;
    int least = 0, odd = 0;
    double dot = 0;
    for (int i = 0; i < n; i++) {
        in[i] = static_cast<int>(random.next());
        keys[i] = i == 0 ? 3 : keys[i - 1] + (random.below(70) == 0);
        weights[i] = random.below(1024) / 1024.0;
        sum += in[i];
        absolute += in[i] < 0 ? -static_cast<long long>(in[i]) : in[i];
        odd += in[i] % 2 != 0;
        dot += weights[i] * weights[i];  // multiples of 2^-20 below 2^18: exact
        if (in[i] < in[least]) least = i;
    }
    thrust::device_vector<int> device(in.begin(), in.end()), deviceKeys(keys.begin(), keys.end());
    thrust::device_vector<double> deviceWeights(weights.begin(), weights.end());

    long long found = thrust::reduce(device.begin(), device.end(), 0ll, thrust::plus<long long>());
    expect(found == sum, "sum %lld, expected %lld", found, sum);
    found = thrust::transform_reduce(device.begin(), device.end(), Absolute(), 0ll, thrust::plus<long long>());
    expect(found == absolute, "absolute %lld, expected %lld", found, absolute);
    found = thrust::min_element(device.begin(), device.end()) - device.begin();
    expect(found == least, "least at %lld, expected %d", found, least);
    found = thrust::count_if(device.begin(), device.end(), Odd());
    expect(found == odd, "odd %lld, expected %d", found, odd);
    double product = thrust::inner_product(deviceWeights.begin(), deviceWeights.end(), deviceWeights.begin(), 0.0);
    expect(product == dot, "inner product %.17g, expected %.17g", product, dot);

    thrust::device_vector<int> outKeys(n), outSums(n);
    auto ends = thrust::reduce_by_key(deviceKeys.begin(), deviceKeys.end(), device.begin(), outKeys.begin(), outSums.begin());
    int groups = static_cast<int>(ends.first - outKeys.begin());
    std::vector<int> groupKeys(n), groupSums(n);
    thrust::copy(outKeys.begin(), outKeys.end(), groupKeys.begin());
    thrust::copy(outSums.begin(), outSums.end(), groupSums.begin());
    expect(groups == keys[n - 1] - keys[0] + 1, "%d groups", groups);
    unsigned int groupSum = 0;
    for (int i = 0; i < n; i++) {
        groupSum += static_cast<unsigned int>(in[i]);
        if (i + 1 < n && keys[i + 1] == keys[i]) continue;
        int group = keys[i] - keys[0];
        expect(groupKeys[group] == keys[i] && groupSums[group] == static_cast<int>(groupSum), "group %d: key %d sum %d", group,
               groupKeys[group], groupSums[group]);
        groupSum = 0;
    }

    thrust::device_vector<int> sequence(1000);
    thrust::sequence(sequence.begin(), sequence.end(), 5, 3);
    found = thrust::reduce(sequence.begin(), sequence.end());
    expect(found == 5 * 1000 + 3 * 999 * 1000 / 2, "sequence %lld", found);
    std::printf("thrust_reduce n=%d sum=%lld groups=%d\n", n, sum, groups);
    return verdict();
}
