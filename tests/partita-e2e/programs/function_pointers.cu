// Indirect calls: a table of functions, a pointer taken on the device, virtual functions, and callees that differ from
// lane to lane.
#include "check.h"

typedef float (*Operation)(float, float);

__device__ float add(float a, float b) { return a + b; }
__device__ float subtract(float a, float b) { return a - b; }
__device__ float multiply(float a, float b) { return a * b; }
__device__ float larger(float a, float b) { return a > b ? a : b; }

__device__ Operation operations[4] = {add, subtract, multiply, larger};
__device__ Operation chosen = subtract;

__global__ void apply(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = operations[(i * 7 + i / 5) % 4](a[i], b[i]);
}

__global__ void fold(Operation operation, const float *a, int n, float *out) {
    float value = a[0];
    for (int i = 1; i < n; i++) value = operation(value, a[i]);
    *out = value;
}

class Shape {
  public:
    __device__ virtual double area() const = 0;
    __device__ virtual int corners() const { return 0; }
    __device__ virtual ~Shape() {}
};

class Circle : public Shape {
    double radius;

  public:
    __device__ explicit Circle(double r) : radius(r) {}
    __device__ double area() const override { return 3.0 * radius * radius; }  // an ancient value of pi, exact
};

class Box : public Shape {
    double width, height;

  public:
    __device__ Box(double w, double h) : width(w), height(h) {}
    __device__ double area() const override { return width * height; }
    __device__ int corners() const override { return 4; }
};

__global__ void measure(double *areas, int *corners) {
    int i = threadIdx.x;
    Circle circle(i);
    Box box(i, 2);
    const Shape *shape = i % 3 == 0 ? static_cast<const Shape *>(&circle) : &box;
    areas[i] = shape->area();
    corners[i] = shape->corners();
}

int main() {
    const int n = 500;
    Random random;
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; i++) {
        a[i] = random.unit();
        b[i] = random.unit();
    }
    float *da = upload(a), *out = blank<float>(n);
    apply<<<4, 128>>>(da, upload(b), out, n);
    CHECK(cudaGetLastError());
    std::vector<float> found = download(out, n);
    for (int i = 0; i < n; i++) {
        float candidates[4] = {a[i] + b[i], a[i] - b[i], a[i] * b[i], a[i] > b[i] ? a[i] : b[i]};
        float expected = candidates[(i * 7 + i / 5) % 4];
        expect(found[i] == expected, "%d: %g, expected %g", i, found[i], expected);
    }

    Operation operation;
    CHECK(cudaMemcpyFromSymbol(&operation, chosen, sizeof operation));
    fold<<<1, 1>>>(operation, da, 20, out);
    CHECK(cudaGetLastError());
    float expected = a[0];
    for (int i = 1; i < 20; i++) expected -= a[i];
    found = download(out, 1);
    expect(found[0] == expected, "fold: %g, expected %g", found[0], expected);

    double *areas = blank<double>(64);
    int *corners = blank<int>(64);
    measure<<<1, 64>>>(areas, corners);
    CHECK(cudaGetLastError());
    std::vector<double> area = download(areas, 64);
    std::vector<int> corner = download(corners, 64);
    for (int i = 0; i < 64; i++) {
        expect(area[i] == (i % 3 == 0 ? 3.0 * i * i : 2.0 * i), "area %d: %g", i, area[i]);
        expect(corner[i] == (i % 3 == 0 ? 0 : 4), "corners %d: %d", i, corner[i]);
    }
    std::printf("function_pointers fold=%g\n", found[0]);
    return verdict();
}
