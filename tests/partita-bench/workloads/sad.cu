// Sums of absolute differences for motion estimation, as in Parboil: a CTA compares blocks of 4 x 4
// pixels with the 16 x 16 places around each in the frame before. Frames of 288 x 176 pixels with a
// border of 8: 3,168 blocks, nine for each of 352 CTAs of 256 threads.
extern "C" __global__ void sad(const unsigned char *now, const unsigned char *before,
                               unsigned short *sums, unsigned pitch, unsigned across, unsigned blocks) {
    for (unsigned block = blockIdx.x; block < blocks; block += gridDim.x) {
        const unsigned left = 8 + block % across * 4, top = 8 + block / across * 4;
        const unsigned x = left - 8 + threadIdx.x, y = top - 8 + threadIdx.y;
        int sum = 0;
#pragma unroll
        for (unsigned row = 0; row < 4; row++) {
#pragma unroll
            for (unsigned column = 0; column < 4; column++) {
                const int a = now[(top + row) * pitch + left + column];
                const int b = before[(y + row) * pitch + x + column];
                sum += abs(a - b);
            }
        }
        sums[block * 256 + threadIdx.y * 16 + threadIdx.x] = (unsigned short)sum;
    }
}
