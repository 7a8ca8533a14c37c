// Coulombic potential: the potential of point charges on a plane of grid points, by direct summation. A thread has eight points
// of a row, so that what is common to them is computed once for each charge.
// Idea: direct Coulomb summation (Stone et al. 2007); CP of CD-search Table 1.
// Sizes: 32 x 128 CTAs as in the table, 16 x 8 threads, 8 points each; 32 charges, which a CTA stages in shared memory.
#define CHARGES 32
#define POINTS 8

extern "C" __global__ void cp(const float4 *atoms, float *potential, float spacing) {
    __shared__ float4 charges[CHARGES];
    unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    if (thread < CHARGES) charges[thread] = atoms[thread];
    __syncthreads();
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned stride = gridDim.x * blockDim.x;
    float y = spacing * row, x0 = spacing * column, energy[POINTS] = {};
    for (int k = 0; k < CHARGES; k++) {
        float4 atom = charges[k];
        float dy = y - atom.y, rest = dy * dy + atom.z * atom.z;
#pragma unroll
        for (int p = 0; p < POINTS; p++) {
            float dx = x0 + spacing * stride * p - atom.x;
            energy[p] += atom.w * rsqrtf(dx * dx + rest);
        }
    }
#pragma unroll
    for (int p = 0; p < POINTS; p++) potential[(row * POINTS + p) * stride + column] += energy[p];
}
