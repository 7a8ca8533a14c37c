// Batches of copies and copies with attributes, as CUDA 13 and as 12.8 have them; what streams, kernels and pools say of themselves.
#include "driver.h"

__global__ void scale(unsigned *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 3;
}

int main() {
    CHECK(cudaFree(nullptr));
    auto batchAsync = entry<decltype(&::cuMemcpyBatchAsync)>("cuMemcpyBatchAsync", 13000);
    auto batch3DAsync = entry<decltype(&::cuMemcpy3DBatchAsync)>("cuMemcpy3DBatchAsync", 13000);
    using Older = CUresult (*)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t,
                               size_t *, CUstream);
    auto olderBatchAsync = entry<Older>("cuMemcpyBatchAsync", 12080);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const int n = 1000;
    const size_t bytes = n * sizeof(unsigned);
    std::vector<unsigned> host(n), back(n, 0);
    for (int i = 0; i < n; i++) host[i] = 7 * i;
    unsigned *a = blank<unsigned>(n), *b = blank<unsigned>(n), *pinned;
    CHECK(cudaMallocHost(&pinned, bytes));
    std::memcpy(pinned, host.data(), bytes);
    auto address = [](const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };

    // Two copies with one set of attributes, a third with another.
    CUdeviceptr to[3] = {address(a), address(b), address(b + n / 2)};
    CUdeviceptr from[3] = {address(host.data()), address(pinned), address(host.data())};
    size_t sizes[3] = {bytes, bytes / 2, bytes / 2};
    CUmemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    size_t first[2] = {0, 2};
    DRIVER(batchAsync(to, from, sizes, 3, attributes, first, 2, stream));
    scale<<<(n + 255) / 256, 256, 0, stream>>>(b, n);
    CHECK(cudaStreamSynchronize(stream));
    std::vector<unsigned> gotA = download(a, n), gotB = download(b, n);
    for (int i = 0; i < n; i++) {
        expect(gotA[i] == host[i], "a[%d] = %u", i, gotA[i]);
        expect(gotB[i] == 3 * host[i % (n / 2)], "b[%d] = %u", i, gotB[i]);
    }
    // The shape of 12.8 says which copy failed.
    size_t failed = 5;
    CUdeviceptr home[2] = {address(back.data()), address(back.data() + n / 2)};
    CUdeviceptr there[2] = {address(b), 0};
    expect(olderBatchAsync(home, there, sizes + 1, 2, attributes, first, 1, &failed, stream) == CUDA_ERROR_INVALID_VALUE,
           "a null pointer was copied");
    expect(failed == 1, "copy %zu failed", failed);
    there[1] = address(b + n / 2);
    DRIVER(olderBatchAsync(home, there, sizes + 1, 2, attributes, first, 1, &failed, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(back == gotB && failed == SIZE_MAX, "back again");
    first[1] = 0;
    expect(batchAsync(to, from, sizes, 3, attributes, first, 2, stream) == CUDA_ERROR_INVALID_VALUE, "attributes twice");
    expect(batchAsync(to, from, sizes, 3, attributes, first, 1, nullptr) == CUDA_ERROR_INVALID_VALUE, "the legacy stream");

    // A box between pitched memory and an array, and back to memory that is packed.
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float2>();
    CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(16, 8, 4)));
    const size_t width = 5, height = 3, depth = 2, row = 9, layer = 4;
    std::vector<float2> box(row * layer * depth), packed(width * height * depth);
    for (size_t i = 0; i < box.size(); i++) box[i] = {float(i), -float(i)};
    CUDA_MEMCPY3D_BATCH_OP copies[2] = {};
    copies[0].src.type = copies[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    copies[0].dst.type = copies[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    copies[0].src.op.ptr = {address(box.data()), row, layer, {}};
    copies[1].dst.op.ptr = {address(packed.data()), 0, 0, {}};
    copies[0].dst.op.array = copies[1].src.op.array = {reinterpret_cast<CUarray>(array), {3, 2, 1}};
    for (CUDA_MEMCPY3D_BATCH_OP &one : copies) {
        one.extent = {width, height, depth};
        one.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    }
    DRIVER(batch3DAsync(1, copies, 0, stream));
    DRIVER(batch3DAsync(1, copies + 1, 0, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++) {
                float2 found = packed[(z * height + y) * width + x], wanted = box[(z * layer + y) * row + x];
                expect(found.x == wanted.x && found.y == wanted.y, "%zu %zu %zu: %f", x, y, z, found.x);
            }
    copies[0].extent.width = 14;
    expect(batch3DAsync(1, copies, 0, stream) == CUDA_ERROR_INVALID_VALUE, "beyond the array");

    // Attributes of streams are kept, copied and have CUDA's defaults.
    cudaStream_t other;
    CHECK(cudaStreamCreateWithPriority(&other, cudaStreamDefault, -2));
    cudaStreamAttrValue value = {};
    CHECK(cudaStreamGetAttribute(other, cudaStreamAttributePriority, &value));
    expect(value.priority == -2, "priority %d", value.priority);
    value = {};
    value.accessPolicyWindow.base_ptr = a;
    value.accessPolicyWindow.num_bytes = bytes;
    value.accessPolicyWindow.hitRatio = 0.5f;
    CHECK(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value));
    CHECK(cudaStreamCopyAttributes(other, stream));
    value = {};
    CHECK(cudaStreamGetAttribute(other, cudaStreamAttributeAccessPolicyWindow, &value));
    expect(value.accessPolicyWindow.base_ptr == a && value.accessPolicyWindow.hitRatio == 0.5f, "another window");
    CHECK(cudaStreamGetAttribute(other, cudaStreamAttributeSynchronizationPolicy, &value));
    expect(value.syncPolicy == cudaSyncPolicyAuto, "policy %d", value.syncPolicy);

    // Kernels know their library, places their pools.
    auto cuKernelGetLibrary = entry<decltype(&::cuKernelGetLibrary)>("cuKernelGetLibrary", 12050);
    USE(cuLibraryGetKernel);
    CUlibrary library;
    CUkernel kernel, again;
    cudaKernel_t handle;
    CHECK(cudaGetKernel(&handle, scale));
    kernel = reinterpret_cast<CUkernel>(handle);
    DRIVER(cuKernelGetLibrary(&library, kernel));
    DRIVER(cuLibraryGetKernel(&again, library, "_Z5scalePji"));
    expect(kernel == again, "another kernel");
    auto defaultPool = entry<decltype(&::cuMemGetDefaultMemPool)>("cuMemGetDefaultMemPool", 13000);
    auto currentPool = entry<decltype(&::cuMemGetMemPool)>("cuMemGetMemPool", 13000);
    CUmemoryPool ofPlace, current;
    cudaMemPool_t ofDevice;
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    DRIVER(defaultPool(&ofPlace, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
    DRIVER(currentPool(&current, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(cudaDeviceGetDefaultMemPool(&ofDevice, 0));
    expect(ofPlace == ofDevice && current == ofDevice, "another pool");
    expect(defaultPool(&ofPlace, &place, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_ERROR_NOT_SUPPORTED, "a managed pool");

    CHECK(cudaFreeArray(array));
    CHECK(cudaFreeHost(pinned));
    std::printf("batch_copy n=%d\n", n);
    return verdict();
}
