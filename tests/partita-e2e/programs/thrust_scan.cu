// Thrust's scans: inclusive, exclusive, with another operator, by key, and over an iterator that computes.
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/scan.h>

#include "check.h"

struct Square {
    __host__ __device__ unsigned int operator()(unsigned int x) const { return x * x; }
};

int main() {
    const int n = 100003;
    Random random;
    std::vector<int> in(n), keys(n), out(n);
    for (int i = 0; i < n; i++) {
        in[i] = static_cast<int>(random.below(2001)) - 1000;
        keys[i] = i == 0 ? 0 : keys[i - 1] + (random.below(50) == 0);
    }
    thrust::device_vector<int> device(in.begin(), in.end()), deviceKeys(keys.begin(), keys.end()), result(n);

    thrust::inclusive_scan(device.begin(), device.end(), result.begin());
    thrust::copy(result.begin(), result.end(), out.begin());
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += in[i];
        expect(out[i] == sum, "inclusive %d: %d, expected %d", i, out[i], sum);
    }
    std::printf("thrust_scan n=%d sum=%d\n", n, sum);

    thrust::exclusive_scan(device.begin(), device.end(), result.begin(), 17);
    thrust::copy(result.begin(), result.end(), out.begin());
    sum = 17;
    for (int i = 0; i < n; i++) {
        expect(out[i] == sum, "exclusive %d: %d, expected %d", i, out[i], sum);
        sum += in[i];
    }

    thrust::inclusive_scan(device.begin(), device.end(), result.begin(), thrust::maximum<int>());
    thrust::copy(result.begin(), result.end(), out.begin());
    int greatest = in[0];
    for (int i = 0; i < n; i++) {
        greatest = in[i] > greatest ? in[i] : greatest;
        expect(out[i] == greatest, "maximum %d: %d, expected %d", i, out[i], greatest);
    }

    thrust::inclusive_scan_by_key(deviceKeys.begin(), deviceKeys.end(), device.begin(), result.begin());
    thrust::copy(result.begin(), result.end(), out.begin());
    for (int i = 0; i < n; i++) {
        sum = i > 0 && keys[i] == keys[i - 1] ? sum + in[i] : in[i];
        expect(out[i] == sum, "by key %d: %d, expected %d", i, out[i], sum);
    }

    thrust::device_vector<unsigned int> squares(n);
    auto numbers = thrust::make_transform_iterator(thrust::counting_iterator<unsigned int>(0), Square());
    thrust::inclusive_scan(numbers, numbers + n, squares.begin());
    std::vector<unsigned int> found(n);
    thrust::copy(squares.begin(), squares.end(), found.begin());
    unsigned int total = 0;
    for (int i = 0; i < n; i++) {
        total += static_cast<unsigned int>(i) * i;
        expect(found[i] == total, "squares %d: %u, expected %u", i, found[i], total);
    }
    return verdict();
}
