// Magnetic resonance imaging, the matrix Q, as in Parboil: a thread adds up what 256 samples say of a
// voxel; the samples are constants. 57,344 voxels: 448 CTAs of 128 threads.
__constant__ float4 samples[256];

extern "C" __global__ void mriq(const float *xs, const float *ys, const float *zs, float *real,
                                float *imaginary) {
    const unsigned voxel = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = xs[voxel], y = ys[voxel], z = zs[voxel];
    float cosines = real[voxel], sines = imaginary[voxel];
#pragma unroll 4
    for (unsigned k = 0; k < 256; k++) {
        const float4 sample = samples[k];
        const float angle = 6.2831853071795864769f * (sample.x * x + sample.y * y + sample.z * z);
        cosines += sample.w * __cosf(angle);
        sines += sample.w * __sinf(angle);
    }
    real[voxel] = cosines;
    imaginary[voxel] = sines;
}
