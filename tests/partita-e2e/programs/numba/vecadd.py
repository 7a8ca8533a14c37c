"""Vector addition: one thread an element, ragged grid."""
import numpy as np
from numba import cuda


@cuda.jit
def add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


n = 100_003
rng = np.random.default_rng(1)
a, b = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)
out = cuda.device_array(n, dtype=np.float32)
add[(n + 255) // 256, 256](cuda.to_device(a), cuda.to_device(b), out)
np.testing.assert_array_equal(out.copy_to_host(), a + b)
print("vecadd PASSED")
