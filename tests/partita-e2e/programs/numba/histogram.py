"""A histogram: counted by atomics in shared memory, then added up in global memory."""
import numpy as np
from numba import cuda, int32

BINS = 37


@cuda.jit
def count(values, bins):
    local = cuda.shared.array(BINS, int32)
    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):
        local[b] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(local, values[i] % BINS, 1)
    cuda.syncthreads()
    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):
        cuda.atomic.add(bins, b, local[b])


values = np.random.default_rng(2).integers(0, 1 << 30, 50_001, dtype=np.uint32)
bins = np.zeros(BINS, dtype=np.int32)
count[20, 192](values, bins)
np.testing.assert_array_equal(bins, np.bincount(values % BINS, minlength=BINS))
print("histogram PASSED")
