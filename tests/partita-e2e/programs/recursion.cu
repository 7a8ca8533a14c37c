// Recursion on the device's stack: Ackermann's function, quicksort in global memory and a parser of nested brackets.
#include <algorithm>
#include <cstring>

#include "check.h"

__host__ __device__ __noinline__ unsigned int ackermann(unsigned int m, unsigned int n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

__device__ __noinline__ void quicksort(int *data, int low, int high) {
    if (low >= high) return;
    int pivot = data[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (data[i] < pivot) i++;
        while (data[j] > pivot) j--;
        if (i <= j) {
            int other = data[i];
            data[i++] = data[j];
            data[j--] = other;
        }
    }
    quicksort(data, low, j);
    quicksort(data, i, high);
}

// expression = term {('+' | '-') term}, term = factor {'*' factor}, factor = digit | '(' expression ')'
struct Parser {
    const char *at;

    __host__ __device__ __noinline__ int factor() {
        if (*at != '(') return *at++ - '0';
        at++;
        int value = expression();
        at++;
        return value;
    }
    __host__ __device__ __noinline__ int term() {
        int value = factor();
        while (*at == '*') {
            at++;
            value *= factor();
        }
        return value;
    }
    __host__ __device__ __noinline__ int expression() {
        int value = term();
        while (*at == '+' || *at == '-') {
            char operation = *at++;
            int right = term();
            value = operation == '+' ? value + right : value - right;
        }
        return value;
    }
};

__global__ void ackermanns(unsigned int *out) { out[threadIdx.x] = ackermann(threadIdx.x / 8, threadIdx.x % 8); }

__global__ void sortEach(int *data, int size) {
    quicksort(data + (blockIdx.x * blockDim.x + threadIdx.x) * size, 0, size - 1);
}

__global__ void parse(const char *texts, int stride, int *out) {
    Parser parser{texts + threadIdx.x * stride};
    out[threadIdx.x] = parser.expression();
}

int main() {
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 16 * 1024));
    size_t stack;
    CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    expect(stack >= 16 * 1024, "stack of %zu bytes", stack);

    unsigned int *values = blank<unsigned int>(24);
    ackermanns<<<1, 24>>>(values);
    CHECK(cudaGetLastError());
    std::vector<unsigned int> found = download(values, 24);
    for (unsigned int i = 0; i < 24; i++)
        expect(found[i] == ackermann(i / 8, i % 8), "A(%u, %u) = %u", i / 8, i % 8, found[i]);

    const int arrays = 64, size = 50;
    Random random;
    std::vector<int> data(arrays * size);
    for (int &value : data) value = static_cast<int>(random.below(1000));
    int *device = upload(data);
    sortEach<<<2, arrays / 2>>>(device, size);
    CHECK(cudaGetLastError());
    std::vector<int> sorted = download(device, data.size());
    for (int a = 0; a < arrays; a++) {
        std::sort(data.begin() + a * size, data.begin() + (a + 1) * size);
        for (int i = 0; i < size; i++)
            expect(sorted[a * size + i] == data[a * size + i], "array %d, %d: %d", a, i, sorted[a * size + i]);
    }

    const char *texts[] = {"1+2*3", "(1+2)*3", "((((7))))", "9-8-7", "2*(3+4*(5-(6-7)*2))-1", "(1-2)*(3-4)*(5-6)*(7-8)"};
    const int expected[] = {7, 9, 7, -6, 61, 1}, stride = 32, count = 6;
    std::vector<char> packed(count * stride, 0);
    for (int i = 0; i < count; i++) std::strcpy(&packed[i * stride], texts[i]);
    int *results = blank<int>(count);
    parse<<<1, count>>>(upload(packed), stride, results);
    CHECK(cudaGetLastError());
    std::vector<int> parsed = download(results, count);
    for (int i = 0; i < count; i++) expect(parsed[i] == expected[i], "%s = %d, expected %d", texts[i], parsed[i], expected[i]);
    std::printf("recursion A(2,7)=%u\n", found[23]);
    return verdict();
}
