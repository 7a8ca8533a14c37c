// Thrust's sorts: keys of several types, keys with values, a comparison of one's own, stability.
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/sort.h>

#include <algorithm>

#include "check.h"

struct Particle {
    float energy;
    int id;
};

struct ByEnergy {
    __host__ __device__ bool operator()(const Particle &a, const Particle &b) const { return a.energy < b.energy; }
};

template <class T>
void keys(const char *name, std::vector<T> values) {
    thrust::device_vector<T> device(values.begin(), values.end());
    thrust::sort(device.begin(), device.end());
    std::sort(values.begin(), values.end());
    std::vector<T> found(values.size());
    thrust::copy(device.begin(), device.end(), found.begin());
    for (size_t i = 0; i < values.size(); i++) expect(found[i] == values[i], "%s, place %zu", name, i);
}

int main() {
    const int n = 30011;
    Random random;
    std::vector<int> ints(n);
    std::vector<unsigned long long> wide(n);
    std::vector<float> floats(n);
    std::vector<Particle> particles(n);
    for (int i = 0; i < n; i++) {
        ints[i] = static_cast<int>(random.next());
        wide[i] = static_cast<unsigned long long>(random.next()) << 32 | random.next();
        floats[i] = random.unit() - 0.5f;
        particles[i] = {static_cast<float>(random.below(500)), i};
    }
    keys("int", ints);
    keys("unsigned long long", wide);
    keys("float", floats);
    keys("one", std::vector<int>{5});

    std::vector<int> digits(n), places(n);
    for (int i = 0; i < n; i++) {
        digits[i] = ints[i] & 255;
        places[i] = i;
    }
    thrust::device_vector<int> byKey(digits.begin(), digits.end()), values(places.begin(), places.end());
    thrust::stable_sort_by_key(byKey.begin(), byKey.end(), values.begin(), thrust::greater<int>());
    std::stable_sort(places.begin(), places.end(), [&](int a, int b) { return digits[a] > digits[b]; });
    std::vector<int> found(n);
    thrust::copy(values.begin(), values.end(), found.begin());
    for (int i = 0; i < n; i++) expect(found[i] == places[i], "by key, place %d: %d, expected %d", i, found[i], places[i]);

    // A comparison of one's own takes the merge sort.
    thrust::device_vector<Particle> device(particles.begin(), particles.end());
    thrust::stable_sort(device.begin(), device.end(), ByEnergy());
    std::stable_sort(particles.begin(), particles.end(), ByEnergy());
    std::vector<Particle> sorted(n);
    thrust::copy(device.begin(), device.end(), sorted.begin());
    for (int i = 0; i < n; i++)
        expect(sorted[i].id == particles[i].id && sorted[i].energy == particles[i].energy, "particle %d: %d, expected %d", i,
               sorted[i].id, particles[i].id);
    std::printf("thrust_sort n=%d least=%d\n", n, ints.empty() ? 0 : *std::min_element(ints.begin(), ints.end()));
    return verdict();
}
