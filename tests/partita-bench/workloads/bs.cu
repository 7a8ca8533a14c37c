// European options by Black and Scholes with exact logarithms, exponentials and divisions: a thread
// adds up what an option is worth over ten years to expiry. 86,016 options: 336 CTAs of 256 threads.
__device__ float normal(float d) {
    const float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
    const float tail =
        k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f))));
    const float p = 0.39894228040143267794f * expf(-0.5f * d * d) * tail;
    return d > 0.0f ? 1.0f - p : p;
}

extern "C" __global__ void bs(const float *spot, const float *strike, float *call, float *put, float rate,
                              float volatility) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const float s = spot[i], x = strike[i];
    float calls = 0.0f, puts = 0.0f;
#pragma unroll 1
    for (unsigned years = 1; years <= 10; years++) {
        const float t = (float)years, root = sqrtf(t);
        const float d1 = (logf(s / x) + (rate + 0.5f * volatility * volatility) * t) / (volatility * root);
        const float d2 = d1 - volatility * root;
        const float n1 = normal(d1), n2 = normal(d2);
        const float discount = expf(-rate * t);
        calls += s * n1 - x * discount * n2;
        puts += x * discount * (1.0f - n2) - s * (1.0f - n1);
    }
    call[i] = calls;
    put[i] = puts;
}
