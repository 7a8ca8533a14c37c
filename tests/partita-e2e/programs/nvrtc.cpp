// Kernels that are compiled while the program runs: NVRTC makes PTX of C++ for several architectures, the driver loads it,
// as a module and as a library. What was compiled for a real architecture is loaded as its image (`nvrtcGetCUBIN`).
#include <cuda.h>
#include <nvrtc.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CHECK(call)                                                                             \
    do {                                                                                        \
        auto error_ = (call);                                                                   \
        if (error_ != decltype(error_){}) {                                                     \
            std::fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, (int)error_); \
            std::exit(1);                                                                       \
        }                                                                                       \
    } while (0)

static const char *const source = R"(
__constant__ float offset[2];
__device__ int calls;

template <typename T, int Block>
__global__ void scale_and_sum(const T *in, T *out, T factor, T *sum, int n) {
    __shared__ T shared[Block];
    int i = blockIdx.x * Block + threadIdx.x;
    T value = i < n ? factor * in[i] + T(offset[i & 1]) : T(0);
    if (i < n) out[i] = value;
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = Block / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(sum, shared[0]);
        atomicAdd(&calls, 1);
    }
}

extern "C" __global__ void roots(const double *in, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sqrt(in[i]) + sin(in[i]);
}
)";

static int failures = 0;

static void expect(bool holds, const char *what) {
    if (holds) return;
    std::printf("wrong: %s\n", what);
    failures++;
}

template <typename T>
static CUdeviceptr upload(const std::vector<T> &host) {
    CUdeviceptr device;
    CHECK(cuMemAlloc(&device, host.size() * sizeof(T)));
    CHECK(cuMemcpyHtoD(device, host.data(), host.size() * sizeof(T)));
    return device;
}

template <typename T>
static std::vector<T> download(CUdeviceptr device, size_t count) {
    std::vector<T> host(count);
    CHECK(cuMemcpyDtoH(host.data(), device, count * sizeof(T)));
    return host;
}

struct Compiled {
    std::string ptx, image, floats, doubles;
};

static Compiled compile(const char *architecture, bool fast) {
    nvrtcProgram program;
    CHECK(nvrtcCreateProgram(&program, source, "source.cu", 0, nullptr, nullptr));
    const char *single_name = "scale_and_sum<float, 128>", *double_name = "scale_and_sum<double, 64>";
    CHECK(nvrtcAddNameExpression(program, single_name));
    CHECK(nvrtcAddNameExpression(program, double_name));
    std::string target = std::string("--gpu-architecture=") + architecture;
    std::vector<const char *> options = {target.c_str(), "--std=c++17", fast ? "--extra-device-vectorization" : "-lineinfo"};
    nvrtcResult result = nvrtcCompileProgram(program, (int)options.size(), options.data());
    size_t size;
    CHECK(nvrtcGetProgramLogSize(program, &size));
    std::string log(size, 0);
    CHECK(nvrtcGetProgramLog(program, log.data()));
    if (result != NVRTC_SUCCESS) {
        std::fprintf(stderr, "%s\n", log.c_str());
        std::exit(1);
    }
    CHECK(nvrtcGetPTXSize(program, &size));
    Compiled compiled;
    compiled.ptx.resize(size);
    CHECK(nvrtcGetPTX(program, compiled.ptx.data()));
    CHECK(nvrtcGetCUBINSize(program, &size));
    compiled.image.resize(size);
    if (size > 0) CHECK(nvrtcGetCUBIN(program, compiled.image.data()));
    const char *lowered;
    CHECK(nvrtcGetLoweredName(program, single_name, &lowered));
    compiled.floats = lowered;
    CHECK(nvrtcGetLoweredName(program, double_name, &lowered));
    compiled.doubles = lowered;
    CHECK(nvrtcDestroyProgram(&program));
    return compiled;
}

template <typename T>
static void check_scale(CUfunction kernel, int block, T tolerance) {
    const int n = 5000;
    std::vector<T> in(n);
    for (int i = 0; i < n; i++) in[i] = T(i % 101) / 4;
    T factor = T(1.5);
    CUdeviceptr input = upload(in), output = upload(std::vector<T>(n)), sum = upload(std::vector<T>(1));
    int count = n;
    void *arguments[] = {&input, &output, &factor, &sum, &count};
    CHECK(cuLaunchKernel(kernel, (n + block - 1) / block, 1, 1, block, 1, 1, 0, nullptr, arguments, nullptr));
    CHECK(cuCtxSynchronize());
    std::vector<T> out = download<T>(output, n);
    double total = 0;
    for (int i = 0; i < n; i++) {
        T expected = factor * in[i] + (i & 1 ? T(0.25) : T(-3));
        total += expected;
        if (out[i] != expected) return expect(false, "an element");
    }
    expect(std::fabs(download<T>(sum, 1)[0] - total) <= tolerance * total, "the sum");
    for (CUdeviceptr pointer : {input, output, sum}) CHECK(cuMemFree(pointer));
}

static void check_roots(CUfunction kernel) {
    const int n = 777;
    std::vector<double> in(n);
    for (int i = 0; i < n; i++) in[i] = i * 0.37;
    CUdeviceptr input = upload(in), output = upload(std::vector<double>(n));
    int count = n;
    void *arguments[] = {&input, &output, &count};
    CHECK(cuLaunchKernel(kernel, 7, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
    std::vector<double> out = download<double>(output, n);
    for (int i = 0; i < n; i++)
        if (std::fabs(out[i] - (std::sqrt(in[i]) + std::sin(in[i]))) > 1e-13) return expect(false, "a root");
    for (CUdeviceptr pointer : {input, output}) CHECK(cuMemFree(pointer));
}

static void fill_constant(CUdeviceptr offset, size_t bytes) {
    const float values[2] = {-3, 0.25f};
    expect(bytes == sizeof values, "the constant's size");
    CHECK(cuMemcpyHtoD(offset, values, sizeof values));
}

int main() {
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));

    int major, minor;
    CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    std::string real = "sm_" + std::to_string(major) + std::to_string(minor);
    for (const char *architecture : {"compute_75", "compute_80", "compute_90", real.c_str()}) {
        Compiled compiled = compile(architecture, std::strstr(architecture, "80") != nullptr);
        std::string target = std::string(".target sm_") + (std::strchr(architecture, '_') + 1);
        expect(compiled.ptx.find(target) != std::string::npos, "the target of the PTX");
        bool is_real = architecture == real;
        expect(compiled.image.empty() != is_real, "an image for a real architecture");
        const char *image = is_real ? compiled.image.data() : compiled.ptx.c_str();

        CUmodule module;
        CUfunction kernel;
        CUdeviceptr variable;
        size_t bytes;
        CHECK(cuModuleLoadData(&module, image));
        CHECK(cuModuleGetGlobal(&variable, &bytes, module, "offset"));
        fill_constant(variable, bytes);
        CHECK(cuModuleGetFunction(&kernel, module, compiled.floats.c_str()));
        check_scale<float>(kernel, 128, 1e-5f);
        CHECK(cuModuleGetFunction(&kernel, module, compiled.doubles.c_str()));
        check_scale<double>(kernel, 64, 1e-12);
        CHECK(cuModuleGetFunction(&kernel, module, "roots"));
        check_roots(kernel);
        CHECK(cuModuleGetGlobal(&variable, &bytes, module, "calls"));
        int calls;
        CHECK(cuMemcpyDtoH(&calls, variable, sizeof calls));
        expect(calls == (5000 + 127) / 128 + (5000 + 63) / 64, "the calls");
        expect(cuModuleGetFunction(&kernel, module, "missing") == CUDA_ERROR_NOT_FOUND, "a missing kernel");
        CHECK(cuModuleUnload(module));

        CUlibrary library;
        CUkernel handle;
        CHECK(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
        CHECK(cuLibraryGetGlobal(&variable, &bytes, library, "offset"));
        fill_constant(variable, bytes);
        CHECK(cuLibraryGetKernel(&handle, library, compiled.floats.c_str()));
        check_scale<float>((CUfunction)handle, 128, 1e-5f);
        CHECK(cuLibraryGetKernel(&handle, library, "roots"));
        CHECK(cuKernelGetFunction(&kernel, handle));
        check_roots(kernel);
        CHECK(cuLibraryUnload(library));
        std::printf("nvrtc %s\n", is_real ? "real" : architecture);
    }
    if (failures != 0) {
        std::printf("FAILED: %d comparisons\n", failures);
        return 1;
    }
    std::printf("PASSED\n");
    return 0;
}
