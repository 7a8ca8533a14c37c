"""CuPy as its users write it: kernels of their own, expressions of arrays, reductions, scans, streams."""
import cupy as cp
import numpy as np

AXPY = cp.RawKernel(
    r"""
extern "C" __global__ void axpy(const float* x, const float* y, float* z, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + y[i];
}
""",
    "axpy",
)


def raw(n):
    x, y, z = cp.arange(n, dtype=cp.float32), cp.ones(n, dtype=cp.float32), cp.zeros(n, dtype=cp.float32)
    AXPY(((n + 255) // 256,), (256,), (x, y, z, np.float32(2), np.int32(n)))
    assert np.array_equal(cp.asnumpy(z), 2 * np.arange(n, dtype=np.float32) + 1)
    return x, z


def expressions(x, z):
    hx, hz = cp.asnumpy(x), cp.asnumpy(z)
    found = cp.asnumpy(cp.sin(x) * 3 + cp.where(x % 2 == 0, z, -z))
    wanted = np.sin(hx) * 3 + np.where(hx % 2 == 0, hz, -hz)
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-3)
    square = cp.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x * x + y", "square_and_add")
    assert np.array_equal(cp.asnumpy(square(x[:1000], z[:1000])), hx[:1000] ** 2 + hz[:1000])


def reductions(x, z):
    hx, hz = cp.asnumpy(x).astype(np.float64), cp.asnumpy(z).astype(np.float64)
    assert np.isclose(float(z.sum(dtype=cp.float64)), hz.sum(), rtol=1e-12)
    assert float(z.max()) == hz.max() and int(z.argmax()) == hz.argmax()
    rows = x[:9000].reshape(90, 100)
    assert np.allclose(cp.asnumpy(rows.mean(axis=0)), hx[:9000].reshape(90, 100).mean(axis=0))
    euclidean = cp.ReductionKernel("float32 x", "float64 y", "x * x", "a + b", "y = sqrt(a)", "0", "euclidean")
    assert np.isclose(float(euclidean(x)), np.linalg.norm(hx), rtol=1e-6)


def streams():
    with cp.cuda.Stream() as stream:
        sums = cp.cumsum(cp.ones(5000, dtype=cp.int32))
        stream.synchronize()
    assert np.array_equal(cp.asnumpy(sums), np.arange(1, 5001))
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    begin.record()
    cp.zeros(1 << 16).fill(3)
    end.record()
    end.synchronize()
    assert cp.cuda.get_elapsed_time(begin, end) >= 0


x, z = raw(100_003)
expressions(x, z)
reductions(x, z)
streams()
print("PASSED")
