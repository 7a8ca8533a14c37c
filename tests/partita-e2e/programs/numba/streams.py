"""Streams, events, pinned memory, copies of slices, atomics of several kinds, a two-dimensional stencil."""
import numpy as np
from numba import cuda


@cuda.jit
def stencil(field, out):
    x, y = cuda.grid(2)
    if 0 < x < field.shape[1] - 1 and 0 < y < field.shape[0] - 1:
        out[y, x] = (field[y - 1, x] + field[y + 1, x] + field[y, x - 1] + field[y, x + 1]) * 0.25


@cuda.jit
def collect(values, extremes, seen):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.min(extremes, 0, values[i])
        cuda.atomic.max(extremes, 1, values[i])
        if cuda.atomic.cas(seen, values[i] % seen.size, 0, 1) == 0:
            cuda.atomic.add(extremes, 2, 1)


field = np.random.default_rng(5).random((65, 90))
streams = [cuda.stream() for _ in range(3)]
start, end = cuda.event(), cuda.event()
results = []
start.record()
for stream in streams:
    with cuda.pinned(field):
        current = cuda.to_device(field, stream=stream)
        out = cuda.to_device(field, stream=stream)
        for _ in range(5):
            stencil[(3, 9), (32, 8), stream](current, out)
            current, out = out, current
        results.append(current.copy_to_host(stream=stream))
for stream in streams:
    stream.synchronize()
end.record()
end.synchronize()
assert cuda.event_elapsed_time(start, end) > 0
expected = field.copy()
for _ in range(5):
    following = expected.copy()
    following[1:-1, 1:-1] = (expected[:-2, 1:-1] + expected[2:, 1:-1] + expected[1:-1, :-2] + expected[1:-1, 2:]) * 0.25
    expected = following
for result in results:
    np.testing.assert_allclose(result, expected, rtol=1e-14)

device = cuda.to_device(np.arange(100, dtype=np.int32))
np.testing.assert_array_equal(device[10:90:3].copy_to_host(), np.arange(10, 90, 3))
values = np.random.default_rng(6).integers(-5000, 5000, 4321, dtype=np.int32)
extremes = np.array([0, 0, 0], dtype=np.int32)
seen = np.zeros(101, dtype=np.int32)
collect[9, 512](values, extremes, seen)
assert list(extremes) == [values.min(), values.max(), 101] and seen.all(), extremes
print("streams PASSED")
