// Forces between particles within a cut-off, by boxes: a CTA takes a box, and for each box around it, itself included, loads that
// box's particles into shared memory and adds what they do to its own.
// Idea: LavaMD of CD-search Table 1 (Rodinia's subject). As there, the sum of a particle's forces lives in global memory from one
// pair to the next; a compiler that kept it in registers would take away the LLC traffic that the paper measures (Fig. 6c).
// Sizes: 10 x 10 x 10 boxes as in the table's 1,000 CTAs, 16 particles a box, 64 threads, four of which share a particle.
#define SIDE 10
#define MOST 64
#define THREADS 64

extern "C" __global__ void lavamd(const float4 *places, const float *charges, float4 *forces, int particles, float alpha) {
    __shared__ float4 near[MOST];
    __shared__ float charge[MOST];
    int box = blockIdx.x, bx = box % SIDE, by = box / SIDE % SIDE, bz = box / (SIDE * SIDE);
    for (int neighbour = 0; neighbour < 27; neighbour++) {
        int nx = bx + neighbour % 3 - 1, ny = by + neighbour / 3 % 3 - 1, nz = bz + neighbour / 9 - 1;
        if (nx < 0 || ny < 0 || nz < 0 || nx >= SIDE || ny >= SIDE || nz >= SIDE) continue;
        int other = (nz * SIDE + ny) * SIDE + nx;
        for (int i = threadIdx.x; i < particles; i += THREADS) {
            near[i] = places[other * particles + i];
            charge[i] = charges[other * particles + i];
        }
        __syncthreads();
        // Four threads share a particle, each with every fourth particle of the other box.
        for (int i = threadIdx.x / 4; i < particles; i += THREADS / 4) {
            float4 own = places[box * particles + i];
            float4 *force = &forces[(box * particles + i) * 4 + threadIdx.x % 4];
            for (int j = threadIdx.x % 4; j < particles; j += 4) {
                float4 there = near[j];
                float product = own.x * there.x + own.y * there.y + own.z * there.z;
                float weight = __expf(-alpha * (own.w + there.w - 2 * product)) * charge[j];
                force->w += weight;
                force->x += 2 * alpha * weight * (own.x - there.x);
                force->y += 2 * alpha * weight * (own.y - there.y);
                force->z += 2 * alpha * weight * (own.z - there.z);
                asm volatile("" ::: "memory");
            }
        }
        __syncthreads();
    }
}
