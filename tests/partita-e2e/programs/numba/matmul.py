"""A matrix product by tiles, two-dimensional blocks, edges that are no multiple of the tile; and one in double precision."""
import numpy as np
from numba import cuda, float32, float64

TILE = 16


def product(dtype):
    @cuda.jit
    def matmul(a, b, c):
        left = cuda.shared.array((TILE, TILE), dtype)
        right = cuda.shared.array((TILE, TILE), dtype)
        column, row = cuda.grid(2)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        total = dtype(0)
        for tile in range((a.shape[1] + TILE - 1) // TILE):
            k = tile * TILE
            left[y, x] = a[row, k + x] if row < a.shape[0] and k + x < a.shape[1] else 0
            right[y, x] = b[k + y, column] if k + y < b.shape[0] and column < b.shape[1] else 0
            cuda.syncthreads()
            for i in range(TILE):
                total += left[y, i] * right[i, x]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total

    return matmul


rng = np.random.default_rng(3)
for dtype, numba_type, tolerance in ((np.float32, float32, 1e-4), (np.float64, float64, 1e-12)):
    a, b = rng.random((50, 70)).astype(dtype), rng.random((70, 41)).astype(dtype)
    c = np.zeros((50, 41), dtype=dtype)
    product(numba_type)[(3, 4), (TILE, TILE)](a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=tolerance)
print("matmul PASSED")
