// Thrust's selections: unique, copy_if, partition, remove and set operations.
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/partition.h>
#include <thrust/remove.h>
#include <thrust/set_operations.h>
#include <thrust/unique.h>

#include <algorithm>
#include <iterator>

#include "check.h"

struct Multiple {
    int of;
    __host__ __device__ bool operator()(int x) const { return x % of == 0; }
};

void compare(const char *name, const thrust::device_vector<int> &device, size_t size, const std::vector<int> &expected) {
    if (!expect(size == expected.size(), "%s: %zu elements, expected %zu", name, size, expected.size())) return;
    std::vector<int> found(size);
    thrust::copy(device.begin(), device.begin() + static_cast<long>(size), found.begin());
    for (size_t i = 0; i < size; i++) expect(found[i] == expected[i], "%s %zu: %d, expected %d", name, i, found[i], expected[i]);
    std::printf("thrust_unique %s %zu\n", name, size);
}

int main() {
    const int n = 60013;
    Random random;
    std::vector<int> in(n), expected;
    for (int i = 0; i < n; i++) in[i] = i > 0 && random.below(3) != 0 ? in[i - 1] : static_cast<int>(random.below(1000));
    thrust::device_vector<int> device(in.begin(), in.end()), out(2 * n);

    std::unique_copy(in.begin(), in.end(), std::back_inserter(expected));
    auto end = thrust::unique_copy(device.begin(), device.end(), out.begin());
    compare("unique", out, end - out.begin(), expected);

    expected.clear();
    std::copy_if(in.begin(), in.end(), std::back_inserter(expected), Multiple{7});
    end = thrust::copy_if(device.begin(), device.end(), out.begin(), Multiple{7});
    compare("copy_if", out, end - out.begin(), expected);

    expected = in;
    expected.erase(std::remove_if(expected.begin(), expected.end(), Multiple{2}), expected.end());
    thrust::device_vector<int> shrinking = device;
    auto shrunk = thrust::remove_if(shrinking.begin(), shrinking.end(), Multiple{2});
    compare("remove_if", shrinking, shrunk - shrinking.begin(), expected);

    expected = in;
    std::stable_partition(expected.begin(), expected.end(), Multiple{3});
    thrust::device_vector<int> parted = device;
    thrust::stable_partition(parted.begin(), parted.end(), Multiple{3});
    compare("stable_partition", parted, n, expected);

    std::vector<int> a(in.begin(), in.begin() + n / 2), b(in.begin() + n / 2, in.end());
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    expected.clear();
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
    thrust::device_vector<int> da(a.begin(), a.end()), db(b.begin(), b.end());
    end = thrust::set_intersection(da.begin(), da.end(), db.begin(), db.end(), out.begin());
    compare("set_intersection", out, end - out.begin(), expected);
    return verdict();
}
