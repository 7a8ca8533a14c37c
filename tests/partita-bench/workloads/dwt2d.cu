// The first kernel of a colour image's wavelet transform: pixels of three bytes become three planes of integers, each level
// shifted by 128. A CTA stages its bytes in shared memory by words, so that all accesses coalesce.
// Idea: DWT2D of CD-search Table 1 (Rodinia's subject). Of Rodinia's kernels only the splitting one has a grid of one dimension.
// The table's 97,824 CTAs of 256 pixels move 675 MB, which take longer than the paper's two million cycles.
// Sizes: 8,192 CTAs of 256 threads, a pixel each.
#define THREADS 256

extern "C" __global__ void dwt2d(const unsigned *image, int *red, int *green, int *blue) {
    __shared__ unsigned staged[THREADS * 3 / 4];
    unsigned first = blockIdx.x * (THREADS * 3 / 4);
    if (threadIdx.x < THREADS * 3 / 4) staged[threadIdx.x] = image[first + threadIdx.x];
    __syncthreads();
    const unsigned char *pixel = (const unsigned char *)staged + 3 * threadIdx.x;
    unsigned at = blockIdx.x * THREADS + threadIdx.x;
    red[at] = pixel[0] - 128;
    green[at] = pixel[1] - 128;
    blue[at] = pixel[2] - 128;
}
