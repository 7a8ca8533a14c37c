// Online clustering, the gain of opening a centre: for each point the distance to the candidate against what it pays now. What it
// would save is added up for the centre that it has. Coordinates lie dimension by dimension, so that accesses coalesce.
// Idea: local search for k-median (Guha et al. 2000); Streamcluster of CD-search Table 1 (Rodinia's subject).
// Sizes: 131,072 points of 32 dimensions, 512 CTAs of 256 threads as many as in the table, 16 candidates one after the other.
extern "C" __global__ void sc(const float *points, const float *costs, const unsigned *centres, float *saved, unsigned char *moves,
                              int count, int dimensions, int candidate) {
    extern __shared__ float there[];
    for (int d = threadIdx.x; d < dimensions; d += blockDim.x) there[d] = points[(size_t)d * count + candidate];
    __syncthreads();
    int point = blockIdx.x * blockDim.x + threadIdx.x;
    if (point >= count) return;
    float distance = 0;
    for (int d = 0; d < dimensions; d++) {
        float difference = points[(size_t)d * count + point] - there[d];
        distance += difference * difference;
    }
    float gain = costs[point] - distance;
    moves[point] = gain > 0;
    if (gain > 0) atomicAdd(&saved[centres[point]], gain);
}
