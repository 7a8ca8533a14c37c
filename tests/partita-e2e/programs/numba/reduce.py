"""Sums: a tree in shared memory, a butterfly of shuffles, and what is left by atomics."""
import numpy as np
from numba import cuda, float32

THREADS = 128


@cuda.jit
def tree(values, sums):
    shared = cuda.shared.array(THREADS, float32)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    shared[t] = values[i] if i < values.size else 0
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = shared[0]


@cuda.jit
def butterfly(values, total, largest):
    i = cuda.grid(1)
    x = values[i] if i < values.size else 0
    for step in (16, 8, 4, 2, 1):
        x += cuda.shfl_xor_sync(-1, x, step)
    if cuda.laneid == 0:
        cuda.atomic.add(total, 0, x)
        cuda.atomic.max(largest, 0, x)


n = 10_000
values = (np.arange(n) % 1001).astype(np.float32)  # whole numbers: every order of adding gives the same sum
blocks = (n + THREADS - 1) // THREADS
sums = np.zeros(blocks, dtype=np.float32)
tree[blocks, THREADS](values, sums)
assert sums.sum(dtype=np.float64) == values.sum(dtype=np.float64), sums.sum()

whole = (np.arange(n) % 77).astype(np.int32)
total, largest = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
butterfly[blocks, THREADS](whole, total, largest)
assert total[0] == whole.sum(), total
padded = np.zeros(blocks * THREADS, dtype=np.int64)
padded[:n] = whole
assert largest[0] == padded.reshape(-1, 32).sum(axis=1).max(), largest
print("reduce PASSED")
