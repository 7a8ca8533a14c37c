// Page view count, the map and count of a MapReduce job: a thread reads one line of a web server's log byte by byte, hashes its
// address (the text up to the first space) and counts it in an open hash table in global memory.
// Idea: PVC of CD-search Table 1 (Mars). The hash is FNV-1a.
// Sizes: 524,288 lines of 24 to 55 bytes, 2,048 CTAs of 256 threads (the table's 46,875 CTAs are 12 million lines with 256), a table
// of 2^17 entries.
#define SLOTS (1 << 17)

extern "C" __global__ void pvc(const unsigned char *log, const unsigned *starts, unsigned *keys, unsigned *counts, unsigned lines) {
    unsigned line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= lines) return;
    unsigned at = starts[line], hash = 2166136261u;
    for (unsigned char byte = log[at]; byte != ' ' && byte != '\n'; byte = log[++at]) hash = (hash ^ byte) * 16777619u;
    hash |= 1;
    for (unsigned slot = hash >> 15;; slot = (slot + 1) % SLOTS) {
        unsigned found = atomicCAS(&keys[slot], 0, hash);
        if (found == 0 || found == hash) {
            atomicAdd(&counts[slot], 1);
            return;
        }
    }
}
