// Fast Fourier transform, radix 2, one transform of 1024 points per block in shared memory; against a discrete Fourier
// transform in double precision, and back again.
#include "check.h"

const int POINTS = 1024, BITS = 10, BATCH = 12;

__global__ void fft(float2 *data, float direction) {
    __shared__ float2 points[POINTS];
    float2 *mine = data + blockIdx.x * POINTS;
    for (int i = threadIdx.x; i < POINTS; i += blockDim.x) points[__brev(i) >> (32 - BITS)] = mine[i];
    __syncthreads();
    for (int half = 1; half < POINTS; half *= 2) {
        for (int t = threadIdx.x; t < POINTS / 2; t += blockDim.x) {
            int k = t & (half - 1), low = 2 * t - k, high = low + half;
            float sine, cosine;
            sincospif(direction * k / half, &sine, &cosine);
            float2 a = points[low], b = points[high];
            float2 turned = make_float2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
            points[low] = make_float2(a.x + turned.x, a.y + turned.y);
            points[high] = make_float2(a.x - turned.x, a.y - turned.y);
        }
        __syncthreads();
    }
    float scale = direction > 0 ? 1.0f / POINTS : 1.0f;
    for (int i = threadIdx.x; i < POINTS; i += blockDim.x)
        mine[i] = make_float2(points[i].x * scale, points[i].y * scale);
}

int main() {
    Random random;
    std::vector<float2> signal(POINTS * BATCH);
    for (float2 &point : signal) point = make_float2(random.unit() - 0.5f, random.unit() - 0.5f);
    // The first is a pure tone, whose spectrum is one line.
    for (int i = 0; i < POINTS; i++)
        signal[i] = make_float2(static_cast<float>(std::cos(2 * M_PI * 37 * i / POINTS)),
                                static_cast<float>(std::sin(2 * M_PI * 37 * i / POINTS)));
    float2 *data = upload(signal);
    fft<<<BATCH, 256>>>(data, -1.0f);
    CHECK(cudaGetLastError());
    std::vector<float2> spectrum = download(data, signal.size());
    fft<<<BATCH, 256>>>(data, 1.0f);
    CHECK(cudaGetLastError());
    std::vector<float2> back = download(data, signal.size());

    // Errors grow as 2^-24 * log2(n) * root of n in the mean: 10 * 2^-24 * 32 = 2e-5, times a margin of 5.
    for (int batch : {0, 1, BATCH - 1}) {
        const float2 *in = &signal[batch * POINTS];
        for (int k = 0; k < POINTS; k += batch == 0 ? 1 : 7) {
            double re = 0, im = 0;
            for (int i = 0; i < POINTS; i++) {
                double angle = -2 * M_PI * (static_cast<long>(k) * i % POINTS) / POINTS;
                re += in[i].x * std::cos(angle) - in[i].y * std::sin(angle);
                im += in[i].x * std::sin(angle) + in[i].y * std::cos(angle);
            }
            float2 out = spectrum[batch * POINTS + k];
            expect(std::fabs(out.x - re) < 1e-4 * 4 && std::fabs(out.y - im) < 1e-4 * 4,
                   "batch %d, line %d: (%g, %g), expected (%g, %g)", batch, k, out.x, out.y, re, im);
        }
    }
    for (size_t i = 0; i < signal.size(); i++)
        expect(std::fabs(back[i].x - signal[i].x) < 2e-6 && std::fabs(back[i].y - signal[i].y) < 2e-6,
               "point %zu came back as (%g, %g)", i, back[i].x, back[i].y);
    std::printf("fft points=%d batch=%d line37=%.2f\n", POINTS, BATCH, spectrum[37].x);
    return verdict();
}
