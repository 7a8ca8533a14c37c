// Merge sort, the part that sorts tiles: a CTA sorts 512 keys with their values in shared memory. Runs double in each round; an
// element finds its place by binary search in the run that its own is merged with.
// Idea: merging by ranks (Satish, Harris and Garland 2009); MergeSort of CD-search Table 1, whose grid is that of this part.
// Sizes: 4,096 CTAs as in the table, 256 threads, 2 M keys.
#define TILE 512
#define THREADS 256

__device__ inline unsigned below(const unsigned *run, unsigned length, unsigned key, bool equal_too) {
    unsigned low = 0, high = length;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        bool before = equal_too ? run[middle] <= key : run[middle] < key;
        if (before) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" __global__ void merge(const unsigned *keys, const unsigned *values, unsigned *sorted_keys, unsigned *sorted_values) {
    __shared__ unsigned key[TILE], value[TILE];
    unsigned base = blockIdx.x * TILE, a = threadIdx.x, b = threadIdx.x + THREADS;
    key[a] = keys[base + a], key[b] = keys[base + b];
    value[a] = values[base + a], value[b] = values[base + b];
    for (unsigned run = 1; run < TILE; run *= 2) {
        __syncthreads();
        // Thread t merges place t % run of the pair of runs t / run.
        unsigned place = threadIdx.x & (run - 1), start = 2 * (threadIdx.x - place);
        unsigned left = key[start + place], right = key[start + run + place];
        unsigned left_value = value[start + place], right_value = value[start + run + place];
        unsigned left_rank = start + place + below(key + start + run, run, left, false);
        unsigned right_rank = start + place + below(key + start, run, right, true);
        __syncthreads();
        key[left_rank] = left, value[left_rank] = left_value;
        key[right_rank] = right, value[right_rank] = right_value;
    }
    __syncthreads();
    sorted_keys[base + a] = key[a], sorted_keys[base + b] = key[b];
    sorted_values[base + a] = value[a], sorted_values[base + b] = value[b];
}
