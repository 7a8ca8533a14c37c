// A convolution as Hopper's libraries make it: columns of the image come by tensor maps (`im2col`), one copy a place of the
// filter, with strides and with padding where the filter reaches beyond the image.
// nvcc: -gencode arch=compute_90a,code=compute_90a
#include <cuda.h>

#include "check.h"

const int IMAGES = 2, HEIGHT = 11, WIDTH = 14, CHANNELS = 16, FILTERS = 4, SIZE = 3, PAD = 1, STRIDE = 2, PIXELS = 32;
const int ROWS = (HEIGHT + 2 * PAD - SIZE) / STRIDE + 1, COLUMNS = (WIDTH + 2 * PAD - SIZE) / STRIDE + 1;
const int RESULTS = IMAGES * ROWS * COLUMNS;

__device__ uint32_t place(const void *shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

__global__ void convolve(const __grid_constant__ CUtensorMap map, const float *filters, float *out) {
    __shared__ alignas(128) float column[PIXELS * CHANNELS];
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&barrier)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    // The first pixel of the CTA's results.
    int first = blockIdx.x * PIXELS, image = first / (ROWS * COLUMNS), row = first / COLUMNS % ROWS, at = first % COLUMNS;
    float sums[FILTERS] = {};
    for (int tap = 0; tap < SIZE * SIZE; tap++) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(&barrier)),
                         "r"(static_cast<int>(sizeof column))
                         : "memory");
            asm volatile(
                "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
                "%5}], [%6], {%7, %8};" ::"r"(place(column)),
                "l"(&map), "r"(0), "r"(at * STRIDE - PAD), "r"(row * STRIDE - PAD), "r"(image), "r"(place(&barrier)),
                "h"(static_cast<uint16_t>(tap % SIZE)), "h"(static_cast<uint16_t>(tap / SIZE))
                : "memory");
        }
        asm volatile(
            "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(
                place(&barrier)),
            "r"(tap & 1)
            : "memory");
        for (int filter = 0; filter < FILTERS; filter++)
            for (int channel = 0; channel < CHANNELS; channel++)
                sums[filter] += column[threadIdx.x * CHANNELS + channel] *
                                filters[(filter * SIZE * SIZE + tap) * CHANNELS + channel];
        __syncthreads();
    }
    if (first + static_cast<int>(threadIdx.x) < RESULTS)
        for (int filter = 0; filter < FILTERS; filter++) out[(first + threadIdx.x) * FILTERS + filter] = sums[filter];
}

int main() {
    Random random;
    std::vector<float> image(IMAGES * HEIGHT * WIDTH * CHANNELS), filters(FILTERS * SIZE * SIZE * CHANNELS);
    for (float &value : image) value = static_cast<float>(random.below(9)) - 4;
    for (float &value : filters) value = static_cast<float>(random.below(5)) - 2;
    float *of_image = upload(image), *of_filters = upload(filters), *out = blank<float>(RESULTS * FILTERS);

    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &entry, 12000, cudaEnableDefault, &found));
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(entry);
    CUtensorMap map;
    cuuint64_t extents[] = {CHANNELS, WIDTH, HEIGHT, IMAGES};
    cuuint64_t strides[] = {CHANNELS * 4, WIDTH * CHANNELS * 4, HEIGHT * WIDTH * CHANNELS * 4};
    // The first pixels of filters lie between these corners.
    int lower[] = {-PAD, -PAD}, upper[] = {PAD - (SIZE - 1), PAD - (SIZE - 1)};
    cuuint32_t steps[] = {1, STRIDE, STRIDE, 1};
    CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, of_image, extents, strides, lower, upper, CHANNELS,
                             PIXELS, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    expect(result == CUDA_SUCCESS, "cuTensorMapEncodeIm2col: %d", result);
    int ctas = (RESULTS + PIXELS - 1) / PIXELS;
    convolve<<<ctas, PIXELS>>>(map, of_filters, out);
    CHECK(cudaDeviceSynchronize());

    std::vector<float> host = download(out, RESULTS * FILTERS);
    for (int at = 0; at < RESULTS * FILTERS; at++) {
        int filter = at % FILTERS, column = at / FILTERS % COLUMNS, row = at / FILTERS / COLUMNS % ROWS;
        int number = at / FILTERS / COLUMNS / ROWS;
        float sum = 0;
        for (int tap = 0; tap < SIZE * SIZE; tap++) {
            int y = row * STRIDE - PAD + tap / SIZE, x = column * STRIDE - PAD + tap % SIZE;
            if (y < 0 || y >= HEIGHT || x < 0 || x >= WIDTH) continue;
            for (int channel = 0; channel < CHANNELS; channel++)
                sum += image[((number * HEIGHT + y) * WIDTH + x) * CHANNELS + channel] *
                       filters[(filter * SIZE * SIZE + tap) * CHANNELS + channel];
        }
        expect(host[at] == sum, "result %d: %g, expected %g", at, host[at], sum);
    }
    std::printf("convolution results=%d\n", RESULTS * FILTERS);
    return verdict();
}
