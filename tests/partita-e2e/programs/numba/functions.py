"""Device functions, inlined and called, that return tuples; local and constant arrays."""
import numpy as np
from numba import cuda, int32

WEIGHTS = np.array([1, 4, 6, 4, 1], dtype=np.int32)


@cuda.jit(device=True)
def bubble(values, count):
    for i in range(count):
        for j in range(count - 1 - i):
            if values[j] > values[j + 1]:
                values[j], values[j + 1] = values[j + 1], values[j]


@cuda.jit(device=True, inline="never")
def extremes(values, count):
    return values[0], values[count - 1]


@cuda.jit
def medians(data, out):
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    if i < data.shape[0]:
        local = cuda.local.array(5, int32)
        for k in range(5):
            local[k] = data[i, k]
        bubble(local, 5)
        low, high = extremes(local, 5)
        total = 0
        for k in range(5):
            total += weights[k] * local[k]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = low, local[2], high, total


data = np.random.default_rng(4).integers(-1000, 1000, (777, 5), dtype=np.int32)
out = np.zeros((777, 4), dtype=np.int64)
medians[7, 128](data, out)
ordered = np.sort(data, axis=1).astype(np.int64)
np.testing.assert_array_equal(out, np.stack([ordered[:, 0], ordered[:, 2], ordered[:, 4], ordered @ WEIGHTS], axis=1))
print("functions PASSED")
