// Pointer chasing, after Kernelet's home-grown program: a warp follows a list through memory. A
// node has 128 bytes, of which the first word is the next node's index; the lanes read a word each.
// 16,384 nodes in random order: 2 MB. 448 CTAs of one warp, 192 nodes each.
extern "C" __global__ void pc(const unsigned *nodes, unsigned *sums, unsigned count, unsigned hops) {
    const unsigned warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned node = warp * 2654435761u % count, sum = 0;
    for (unsigned hop = 0; hop < hops; hop++) {
        const unsigned word = nodes[node * 32 + lane];
        sum += word;
        node = __shfl_sync(0xffffffffu, word, 0);
    }
    sums[warp * 32 + lane] = sum;
}
