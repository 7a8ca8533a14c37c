// A Jacobi stencil of seven points in three dimensions, as in Parboil: a thread walks up a column of
// 32 points and keeps three of them in registers. 128 x 128 x 130 points, of which the lowest and the
// highest plane stay: 256 CTAs of 256 threads.
extern "C" __global__ void st(const float *from, float *to, unsigned width, unsigned height) {
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned plane = width * height;
    const unsigned west = x > 0 ? 1 : 0, east = x + 1 < width ? 1 : 0;
    const unsigned south = y > 0 ? width : 0, north = y + 1 < height ? width : 0;
    unsigned at = (blockIdx.z * 32 + 1) * plane + y * width + x;
    float below = from[at - plane], here = from[at];
#pragma unroll 2
    for (unsigned z = 0; z < 32; z++) {
        const float above = from[at + plane];
        const float around = from[at - west] + from[at + east] + from[at - south] + from[at + north];
        to[at] = 0.1667f * (around + below + above) - here;
        below = here;
        here = above;
        at += plane;
    }
}
