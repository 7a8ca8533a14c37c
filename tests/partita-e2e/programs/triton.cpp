// Runs Triton's kernels through the driver's API as Triton's own launcher does: PTX from the folder in the first argument,
// threads and dynamic shared memory from its list, two scratch pointers after the kernel's own parameters.
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#define CHECK(call)                                                                             \
    do {                                                                                        \
        CUresult error_ = (call);                                                               \
        if (error_ != CUDA_SUCCESS) {                                                           \
            const char *name_ = "?";                                                            \
            cuGetErrorName(error_, &name_);                                                     \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name_);          \
            std::exit(1);                                                                       \
        }                                                                                       \
    } while (0)

struct Kernel {
    unsigned threads = 0, shared = 0;
    CUdeviceptr scratch[2] = {0, 0};
    CUfunction function = nullptr;
};

static int failures = 0;
static std::map<std::string, Kernel> kernels;

static void expect(bool holds, const char *kernel, size_t index, double found, double expected) {
    if (holds) return;
    if (failures++ < 8) std::printf("wrong: %s[%zu] is %.9g, expected %.9g\n", kernel, index, found, expected);
}

static void load(const std::string &folder) {
    std::ifstream list(folder + "/kernels.txt");
    std::string name;
    Kernel kernel;
    size_t scratch[2];
    while (list >> name >> kernel.threads >> kernel.shared >> scratch[0] >> scratch[1]) {
        std::ifstream file(folder + "/" + name + ".ptx");
        std::stringstream text;
        text << file.rdbuf();
        CUmodule module;
        CHECK(cuModuleLoadData(&module, text.str().c_str()));
        CHECK(cuModuleGetFunction(&kernel.function, module, name.c_str()));
        for (int i = 0; i < 2; i++)
            if (scratch[i] != 0) CHECK(cuMemAlloc(&kernel.scratch[i], scratch[i]));
        if (kernel.shared > 48 << 10)
            CHECK(cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared));
        kernels[name] = kernel;
    }
}

template <typename T>
struct Buffer {
    CUdeviceptr device;
    size_t count;
    explicit Buffer(const std::vector<T> &host) : count(host.size()) {
        CHECK(cuMemAlloc(&device, count * sizeof(T)));
        CHECK(cuMemcpyHtoD(device, host.data(), count * sizeof(T)));
    }
    std::vector<T> read() const {
        std::vector<T> host(count);
        CHECK(cuMemcpyDtoH(host.data(), device, count * sizeof(T)));
        return host;
    }
};

static void launch(const char *name, unsigned x, unsigned y, std::vector<void *> arguments) {
    Kernel &kernel = kernels.at(name);
    arguments.insert(arguments.end(), {&kernel.scratch[0], &kernel.scratch[1]});
    CUlaunchConfig config = {};
    config.gridDimX = x, config.gridDimY = y, config.gridDimZ = 1;
    config.blockDimX = kernel.threads, config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = kernel.shared;
    CHECK(cuLaunchKernelEx(&config, kernel.function, arguments.data(), nullptr));
    CHECK(cuCtxSynchronize());
}

static uint32_t state = 12345;
static uint32_t next() {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}
static std::vector<float> floats(size_t count) {
    std::vector<float> values(count);
    for (float &value : values) value = float(next() >> 8) / float(1 << 23) - 1;
    return values;
}
static std::vector<int> integers(size_t count, int bound) {
    std::vector<int> values(count);
    for (int &value : values) value = int(next() % unsigned(bound));
    return values;
}

// An IEEE half of a multiple of 1/64 in (-16, 16), exactly.
static uint16_t half(float value) {
    if (value == 0) return 0;
    int exponent;
    float fraction = std::frexp(std::fabs(value), &exponent);
    unsigned bits = unsigned(exponent + 14) << 10 | (unsigned(fraction * 2048) & 1023);
    return uint16_t(bits | (value < 0 ? 0x8000 : 0));
}

static void close(const char *name, const std::vector<float> &found, const std::vector<double> &expected, double tolerance) {
    for (size_t i = 0; i < found.size(); i++)
        expect(std::fabs(found[i] - expected[i]) <= tolerance * std::max(1.0, std::fabs(expected[i])), name, i, found[i],
               expected[i]);
}

static void vector_add() {
    int n = 10007;
    std::vector<float> x = floats(n), y = floats(n);
    Buffer<float> a(x), b(y), out(std::vector<float>(n, -1));
    launch("vector_add", (n + 511) / 512, 1, {&a.device, &b.device, &out.device, &n});
    std::vector<float> found = out.read();
    for (int i = 0; i < n; i++) expect(found[i] == x[i] + y[i], "vector_add", i, found[i], x[i] + y[i]);
}

static void softmax() {
    int rows = 37, columns = 781;
    std::vector<float> x = floats(rows * columns);
    for (float &value : x) value *= 8;
    std::vector<double> expected(x.size());
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int c = 0; c < columns; c++) sum += std::exp(double(x[r * columns + c]));
        for (int c = 0; c < columns; c++) expected[r * columns + c] = std::exp(double(x[r * columns + c])) / sum;
    }
    Buffer<float> in(x), out(std::vector<float>(x.size(), -1));
    launch("softmax", rows, 1, {&in.device, &out.device, &columns});
    close("softmax", out.read(), expected, 1e-6);
}

static void layer_norm() {
    int rows = 29, columns = 300;
    std::vector<float> x = floats(rows * columns), w = floats(columns), b = floats(columns);
    std::vector<double> expected(x.size());
    for (int r = 0; r < rows; r++) {
        const float *row = &x[r * columns];
        double mean = std::accumulate(row, row + columns, 0.0) / columns, variance = 0;
        for (int c = 0; c < columns; c++) variance += (row[c] - mean) * (row[c] - mean) / columns;
        for (int c = 0; c < columns; c++)
            expected[r * columns + c] = (row[c] - mean) / std::sqrt(variance + 1e-5) * w[c] + b[c];
    }
    Buffer<float> in(x), weight(w), bias(b), out(std::vector<float>(x.size(), -1));
    launch("layer_norm", rows, 1, {&in.device, &weight.device, &bias.device, &out.device, &columns});
    close("layer_norm", out.read(), expected, 1e-5);
}

static void matmul() {
    int m = 150, n = 72, k = 136;
    std::vector<float> a(m * k), b(k * n);
    for (float &value : a) value = (int(next() % 129) - 64) / 64.0f;
    for (float &value : b) value = (int(next() % 129) - 64) / 64.0f;
    std::vector<uint16_t> left(a.size()), right(b.size());
    std::transform(a.begin(), a.end(), left.begin(), half);
    std::transform(b.begin(), b.end(), right.begin(), half);
    std::vector<double> expected(m * n);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            for (int l = 0; l < k; l++) expected[i * n + j] += double(a[i * k + l]) * b[l * n + j];
    Buffer<uint16_t> x(left), y(right);
    Buffer<float> out(std::vector<float>(m * n, -1e9f));
    launch("matmul", (m + 63) / 64, (n + 31) / 32, {&x.device, &y.device, &out.device, &m, &n, &k});
    // The products are multiples of 1/4096 and their sums fit into a float.
    close("matmul", out.read(), expected, 0);
}

static void histogram() {
    int n = 9001, count = 41;
    std::vector<int> values = integers(n, 1 << 30), expected(count);
    for (int value : values) expected[value % count]++;
    Buffer<int> in(values), bins(std::vector<int>(count, 0));
    launch("histogram", (n + 255) / 256, 1, {&in.device, &bins.device, &n, &count});
    std::vector<int> found = bins.read();
    for (int i = 0; i < count; i++) expect(found[i] == expected[i], "histogram", i, found[i], expected[i]);
}

static void total() {
    int n = 30011;
    std::vector<int> values = integers(n, 1 << 30);
    Buffer<int> in(values);
    Buffer<long long> sums(std::vector<long long>(2, 0));
    launch("total", (n + 1023) / 1024, 1, {&in.device, &sums.device, &n});
    std::vector<long long> found = sums.read();
    long long sum = std::accumulate(values.begin(), values.end(), 0LL);
    expect(found[0] == sum, "total", 0, double(found[0]), double(sum));
    int largest = *std::max_element(values.begin(), values.end());
    expect(found[1] == largest, "total", 1, double(found[1]), largest);
}

static void prefix_sum() {
    int rows = 9, n = 1000;
    std::vector<int> values = integers(rows * n, 2000), expected(rows * n);
    for (int r = 0; r < rows; r++) std::partial_sum(&values[r * n], &values[r * n] + n, &expected[r * n]);
    Buffer<int> in(values), out(std::vector<int>(rows * n, -1));
    launch("prefix_sum", rows, 1, {&in.device, &out.device, &n});
    std::vector<int> found = out.read();
    for (int i = 0; i < rows * n; i++) expect(found[i] == expected[i], "prefix_sum", i, found[i], expected[i]);
}

static void sort_rows() {
    int rows = 12, width = 256;
    std::vector<int> values = integers(rows * width, 100000), expected = values;
    for (int r = 0; r < rows; r++) std::sort(&expected[r * width], &expected[r * width] + width);
    Buffer<int> in(values), out(std::vector<int>(rows * width, -1));
    launch("sort_rows", rows, 1, {&in.device, &out.device});
    std::vector<int> found = out.read();
    for (int i = 0; i < rows * width; i++) expect(found[i] == expected[i], "sort_rows", i, found[i], expected[i]);
}

int main(int count, char **arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: triton FOLDER\n");
        return 2;
    }
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    load(arguments[1]);
    for (auto test : {vector_add, softmax, layer_norm, matmul, histogram, total, prefix_sum, sort_rows}) test();
    std::printf("triton kernels=%zu\n", kernels.size());
    if (failures != 0) {
        std::printf("FAILED: %d comparisons\n", failures);
        return 1;
    }
    std::printf("PASSED\n");
    return 0;
}
