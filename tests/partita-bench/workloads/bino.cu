// American options by a binomial tree. A CTA prices one option: the values at expiry lie in shared memory and are folded back
// step by step, each thread keeping its own leaves between two barriers.
// Idea: Cox, Ross and Rubinstein's tree; binomial options of CD-search Table 1.
// Sizes: 512 options as in the table, 126 steps, 64 threads with two leaves each.
#define STEPS 126
#define THREADS 64

extern "C" __global__ void bino(const float4 *options, float *prices) {
    __shared__ float values[2 * THREADS + 1];
    float4 option = options[blockIdx.x];  // spot, strike, years, volatility
    float step = option.z / STEPS, up = __expf(option.w * sqrtf(step)), rate = __expf(0.03f * step);
    float down = 1.0f / up, probability = (rate - down) / (up - down);
    float rises = probability / rate, falls = (1.0f - probability) / rate;
    unsigned first = threadIdx.x, second = threadIdx.x + THREADS;
    float root = option.w * sqrtf(step);
    for (unsigned leaf = threadIdx.x; leaf <= STEPS; leaf += THREADS) {
        float spot = option.x * __expf(root * (2.0f * leaf - STEPS));
        values[leaf] = fmaxf(option.y - spot, 0.0f);
    }
    __syncthreads();
    for (int level = STEPS; level > 0; level--) {
        float a = 0, b = 0;
        if (first < level) {
            float spot = option.x * __expf(root * (2.0f * first - (level - 1)));
            a = fmaxf(rises * values[first + 1] + falls * values[first], option.y - spot);
        }
        if (second < level) {
            float spot = option.x * __expf(root * (2.0f * second - (level - 1)));
            b = fmaxf(rises * values[second + 1] + falls * values[second], option.y - spot);
        }
        __syncthreads();
        if (first < level) values[first] = a;
        if (second < level) values[second] = b;
        __syncthreads();
    }
    if (threadIdx.x == 0) prices[blockIdx.x] = values[0];
}
