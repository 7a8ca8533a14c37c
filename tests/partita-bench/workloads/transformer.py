"""Compiles the kernels of a transformer's layers for compute capability 8.0, which needs no GPU, into the folder that is named:
for each kernel its PTX, and a line in `transformer.txt`: name, threads, dynamic shared memory.

What it wrote is kept beside it, so that Triton (1 GB) is needed only when a kernel changes:

    pip install --no-deps --target PACKAGES triton==3.9.0
    TRITON_DISABLE_LINE_INFO=1 TRITON_CACHE_DIR=CACHE PYTHONPATH=PACKAGES python3 transformer.py .

Activations and weights are halves, sums are floats. A row of a matrix is one token.
"""
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def transformer_norm(x, weight, bias, out, columns, BLOCK: tl.constexpr):
    """Layer normalisation, one row a program."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    values = tl.load(x + row * columns + i, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(mask, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + 1e-5)
    shifted = centred * scale * tl.load(weight + i, mask=mask).to(tl.float32) + tl.load(bias + i, mask=mask).to(tl.float32)
    tl.store(out + row * columns + i, shifted.to(tl.float16), mask=mask)


@triton.jit
def product(a, b, bias, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + depth
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + columns[None, :], mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0)
        total += tl.dot(left, right)
    total += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    return total, rows[:, None] * n + columns[None, :], (rows[:, None] < m) & (columns[None, :] < n)


@triton.jit
def transformer_linear(a, b, bias, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Matrix product and bias."""
    total, places, mask = product(a, b, bias, m, n, k, M, N, K)
    tl.store(out + places, total.to(tl.float16), mask=mask)


@triton.jit
def transformer_linear_add(a, b, bias, added, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Matrix product, bias, and what goes round the layer."""
    total, places, mask = product(a, b, bias, m, n, k, M, N, K)
    total += tl.load(added + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(tl.float16), mask=mask)


@triton.jit
def transformer_attention(qkv, out, tokens, heads, scale, M: tl.constexpr, N: tl.constexpr, HEAD: tl.constexpr):
    """Causal attention of one head for M tokens, without writing scores (Dao et al., FlashAttention, NeurIPS '22). A row holds
    the queries of all heads, then the keys, then the values."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    inner = tl.arange(0, HEAD)
    width = heads * HEAD
    queries = tl.load(qkv + rows[:, None] * (3 * width) + head * HEAD + inner[None, :], mask=rows[:, None] < tokens, other=0.0)
    largest = tl.full((M,), -1e30, dtype=tl.float32)
    sums = tl.zeros((M,), dtype=tl.float32)
    mixed = tl.zeros((M, HEAD), dtype=tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * M, N):
        seen = start + tl.arange(0, N)
        keys = tl.load(qkv + seen[None, :] * (3 * width) + width + head * HEAD + inner[:, None], mask=seen[None, :] < tokens, other=0.0)
        scores = tl.dot(queries, keys) * scale
        scores = tl.where((seen[None, :] <= rows[:, None]) & (seen[None, :] < tokens), scores, -1e30)
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        powers = tl.exp(scores - larger[:, None])
        shrink = tl.exp(largest - larger)
        values = tl.load(qkv + seen[:, None] * (3 * width) + 2 * width + head * HEAD + inner[None, :], mask=seen[:, None] < tokens, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(powers.to(tl.float16), values)
        sums = sums * shrink + tl.sum(powers, axis=1)
        largest = larger
    mixed = mixed / sums[:, None]
    tl.store(out + rows[:, None] * width + head * HEAD + inner[None, :], mixed.to(tl.float16), mask=rows[:, None] < tokens)


@triton.jit
def transformer_gelu(x, out, n, BLOCK: tl.constexpr):
    """The activation of GPT-2: x / 2 (1 + tanh u) is x / (1 + exp(-2u))."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value = tl.load(x + i, mask=mask, other=0.0).to(tl.float32)
    inner = 1.5957691216 * (value + 0.044715 * value * value * value)
    tl.store(out + i, (value / (1 + tl.exp(-inner))).to(tl.float16), mask=mask)


@triton.jit
def transformer_softmax(x, out, columns, BLOCK: tl.constexpr):
    """Probabilities of the words that may follow, one row a program."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    values = tl.load(x + row * columns + i, mask=mask, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + i, powers / tl.sum(powers, axis=0), mask=mask)


TILE = {"M": 32, "N": 32, "K": 32}
KERNELS = [
    (transformer_norm, "*fp16 *fp16 *fp16 *fp16 i32", {"BLOCK": 128}, 2),
    (transformer_linear, "*fp16 *fp16 *fp16 *fp16 i32 i32 i32", TILE, 4),
    (transformer_linear_add, "*fp16 *fp16 *fp16 *fp16 *fp16 i32 i32 i32", TILE, 4),
    (transformer_attention, "*fp16 *fp16 i32 i32 fp32", {"M": 32, "N": 32, "HEAD": 32}, 4),
    (transformer_gelu, "*fp16 *fp16 i32", {"BLOCK": 1024}, 4),
    (transformer_softmax, "*fp16 *fp32 i32", {"BLOCK": 256}, 4),
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
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise SystemExit(f"{metadata.name} wants scratch memory, which nobody gives it")
    (folder / f"{metadata.name}.ptx").write_text(compiled.asm["ptx"])
    lines.append(f"{metadata.name} {32 * metadata.num_warps} {metadata.shared}\n")
(folder / "transformer.txt").write_text("".join(lines))
