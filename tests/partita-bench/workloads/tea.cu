// The Tiny Encryption Algorithm (Wheeler and Needham 1994): a thread enciphers three blocks of two
// words, each in 32 cycles. 258,048 blocks: 336 CTAs of 256 threads.
extern "C" __global__ void tea(const uint2 *plain, uint2 *cipher, uint4 key, unsigned blocks) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < blocks; i += gridDim.x * blockDim.x) {
        uint2 v = plain[i];
        unsigned sum = 0;
#pragma unroll 4
        for (unsigned cycle = 0; cycle < 32; cycle++) {
            sum += 0x9e3779b9u;
            v.x += ((v.y << 4) + key.x) ^ (v.y + sum) ^ ((v.y >> 5) + key.y);
            v.y += ((v.x << 4) + key.z) ^ (v.x + sum) ^ ((v.x >> 5) + key.w);
        }
        cipher[i] = v;
    }
}
