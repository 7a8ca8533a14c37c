// Finding white blood cells: for each pixel and each of several radii, how evenly the image's gradient points outward along a
// circle (the inverse coefficient of variation of the gradient in the circle's direction). The best score of a pixel is kept.
// Idea: Leukocyte of CD-search Table 1 (Rodinia's subject, GICOV).
// Sizes: 596 CTAs of 192 threads as many as in the table, a pixel each; 2 radii, 32 samples a circle.
#define SAMPLES 32
#define RADII 2
#define WIDTH 448
#define MARGIN 16

__constant__ float cosines[SAMPLES] = {
    1.000000f,  0.980785f,  0.923880f,  0.831470f,  0.707107f,  0.555570f,  0.382683f,  0.195090f,  0.000000f,  -0.195090f, -0.382683f,
    -0.555570f, -0.707107f, -0.831470f, -0.923880f, -0.980785f, -1.000000f, -0.980785f, -0.923880f, -0.831470f, -0.707107f, -0.555570f,
    -0.382683f, -0.195090f, 0.000000f,  0.195090f,  0.382683f,  0.555570f,  0.707107f,  0.831470f,  0.923880f,  0.980785f};

extern "C" __global__ void leu(const float *across, const float *down, float *scores) {
    unsigned pixel = blockIdx.x * blockDim.x + threadIdx.x, inside = WIDTH - 2 * MARGIN;
    int x = pixel % inside + MARGIN, y = pixel / inside + MARGIN;
    float best = 0;
    for (int radius = 0; radius < RADII; radius++) {
        float length = 6.0f + 2.0f * radius, total = 0, square = 0, gradient[SAMPLES];
#pragma unroll
        for (int k = 0; k < SAMPLES; k++) {
            float cosine = cosines[k], sine = cosines[(k + SAMPLES - SAMPLES / 4) % SAMPLES];
            int at = (y + (int)rintf(length * sine)) * WIDTH + x + (int)rintf(length * cosine);
            gradient[k] = across[at] * cosine + down[at] * sine;
            total += gradient[k];
        }
        float mean = total / SAMPLES;
#pragma unroll
        for (int k = 0; k < SAMPLES; k++) square += (gradient[k] - mean) * (gradient[k] - mean);
        best = fmaxf(best, mean * mean / (square / (SAMPLES - 1) + 1e-12f));
    }
    scores[pixel] = best;
}
