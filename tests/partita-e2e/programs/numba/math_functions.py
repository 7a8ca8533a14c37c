"""Mathematical functions in double and single precision, held against numpy's."""
import math
import numpy as np
from numba import cuda


@cuda.jit
def evaluate(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[0, i] = math.sin(v)
        out[1, i] = math.cos(v)
        out[2, i] = math.exp(v)
        out[3, i] = math.sqrt(v)
        out[4, i] = math.log(v)
        out[5, i] = math.pow(v, 1.7)
        out[6, i] = math.atan2(v, 2.0)
        out[7, i] = math.erf(v)
        out[8, i] = math.tanh(v)
        out[9, i] = math.floor(v * 3) + math.fmod(v, 0.7)
        out[10, i] = math.hypot(v, 3.0)
        out[11, i] = math.gamma(v)


for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 2e-5)):
    x = np.linspace(0.001, 12, 1000).astype(dtype)
    out = np.zeros((12, x.size), dtype=dtype)
    evaluate[8, 128](x, out)
    wide = x.astype(np.float64)
    erf, gamma = np.vectorize(math.erf), np.vectorize(math.gamma)
    expected = [np.sin(wide), np.cos(wide), np.exp(wide), np.sqrt(wide), np.log(wide), wide**1.7, np.arctan2(wide, 2.0),
                erf(wide), np.tanh(wide), None, np.hypot(wide, 3.0), gamma(wide)]
    for row, values in enumerate(expected):
        if values is not None:
            np.testing.assert_allclose(out[row], values, rtol=tolerance, atol=tolerance, err_msg=str((row, dtype)))
    exact = np.floor(x * dtype(3)) + np.fmod(wide, 0.7)
    assert (np.abs(out[9] - exact) < 1e-5).mean() > 0.99
print("math_functions PASSED")
