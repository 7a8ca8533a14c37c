"""Compiles Triton kernels for compute capability 8.0, which needs no GPU, into the folder that is named: for each kernel its PTX
and a line in `kernels.txt`: name, threads, dynamic shared memory, bytes of the two scratch parameters.

What it wrote is kept beside it, so that Triton (1 GB) is needed only when a kernel changes:

    pip install --no-deps --target PACKAGES triton==3.9.0
    TRITON_DISABLE_LINE_INFO=1 TRITON_CACHE_DIR=CACHE PYTHONPATH=PACKAGES python3 kernels.py .
"""
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i, mask=i < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + i, powers / tl.sum(powers, axis=0), mask=i < columns)


@triton.jit
def layer_norm(x, weight, bias, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    values = tl.load(x + row * columns + i, mask=mask, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(mask, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + 1e-5)
    shifted = centred * scale * tl.load(weight + i, mask=mask) + tl.load(bias + i, mask=mask)
    tl.store(out + row * columns + i, shifted, mask=mask)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + depth
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + columns[None, :], mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0)
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def histogram(values, bins, n, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.atomic_add(bins + tl.load(values + i, mask=mask, other=0) % count, 1, mask=mask)


@triton.jit
def total(values, sums, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(values + i, mask=i < n, other=0).to(tl.int64)
    tl.atomic_add(sums, tl.sum(values, axis=0))
    tl.atomic_max(sums + 1, tl.max(values, axis=0))


@triton.jit
def prefix_sum(values, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    values = tl.load(values + row * n + i, mask=i < n, other=0)
    tl.store(out + row * n + i, tl.cumsum(values, axis=0), mask=i < n)


@triton.jit
def sort_rows(values, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.sort(tl.load(values + i)))


KERNELS = [
    (vector_add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 512}, 4),
    (softmax, "*fp32 *fp32 i32", {"BLOCK": 1024}, 4),
    (layer_norm, "*fp32 *fp32 *fp32 *fp32 i32", {"BLOCK": 512}, 2),
    (matmul, "*fp16 *fp16 *fp32 i32 i32 i32", {"M": 64, "N": 32, "K": 32}, 4),
    (histogram, "*i32 *i32 i32 i32", {"BLOCK": 256}, 4),
    (total, "*i32 *i64 i32", {"BLOCK": 1024}, 8),
    (prefix_sum, "*i32 *i32 i32", {"BLOCK": 1024}, 4),
    (sort_rows, "*i32 *i32", {"BLOCK": 256}, 2),
]

folder = Path(sys.argv[1])
lines = []
for kernel, types, constants, warps in KERNELS:
    names = [name for name in kernel.arg_names if name not in constants]
    # Pointers are aligned as cuMemAlloc aligns them; that lets Triton use wide accesses and cp.async.
    attributes = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(types.split()) if kind[0] == "*"}
    signature = dict(zip(names, types.split(), strict=True)) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": warps})
    metadata = compiled.metadata
    (folder / f"{metadata.name}.ptx").write_text(compiled.asm["ptx"])
    scratch = f"{metadata.global_scratch_size} {metadata.profile_scratch_size}"
    lines.append(f"{metadata.name} {32 * metadata.num_warps} {metadata.shared} {scratch}\n")
(folder / "kernels.txt").write_text("".join(lines))
