"""Matrix products as Triton users write them: persistent, by tensor descriptors, stream-K, split-K, batched, of small types."""
import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from arrays import Array, allocate, bfloat16, close, from_bfloat16, from_float8, instructions, start, zeros


@triton.jit
def place(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    # Tiles go down a group of rows before the next column, so that neighbours find their operands in the L2.
    columns = tl.cdiv(N, BN)
    group = tile // (GROUP * columns)
    first = group * GROUP
    height = min(tl.cdiv(M, BM) - first, GROUP)
    within = tile % (GROUP * columns)
    return first + within % height, within // height


@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
               FLATTEN: tl.constexpr):
    inner = tl.arange(0, BK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0), flatten=FLATTEN):
        row, column = place(tile, M, N, BM, BN, GROUP)
        rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
        # Rows past the end read the first ones over again: their products are not stored.
        from_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < M, rows, 0), BM), BM)
        from_columns = tl.max_contiguous(tl.multiple_of(tl.where(columns < N, columns, 0), BN), BN)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            at = k * BK + inner
            left = tl.load(a + from_rows[:, None] * K + at[None, :], mask=at[None, :] < K, other=0.0)
            right = tl.load(b + at[:, None] * N + from_columns[None, :], mask=at[:, None] < K, other=0.0)
            total = tl.dot(left, right, total)
        tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty),
                 mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def by_descriptors(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                   FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr):
    # `b` is stored with its columns as rows, as the weights of a linear layer are.
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0), flatten=FLATTEN):
        row, column = place(tile, M, N, BM, BN, GROUP)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=SPECIALIZE):
            left, right = a.load([row * BM, k * BK]), b.load([column * BN, k * BK])
            total = tl.dot(left, right.T, total)
        c.store([row * BM, column * BN], total.to(c.dtype))


@triton.jit
def descriptors_made_here(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                          SPECIALIZE: tl.constexpr):
    from_a = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    from_b = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    into_c = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN // 2])
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0)):
        row, column = place(tile, M, N, BM, BN, GROUP)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=SPECIALIZE):
            total = tl.dot(from_a.load([row * BM, k * BK]), from_b.load([column * BN, k * BK]).T, total)
        # The result leaves in two halves: each needs half of the shared memory.
        left, right = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
        into_c.store([row * BM, column * BN], left.to(c.dtype.element_ty))
        into_c.store([row * BM, column * BN + BN // 2], right.to(c.dtype.element_ty))


@triton.jit
def partial(a, b, row, column, first, last, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(first, last):
        at = k * BK + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + at[None, :], mask=(rows[:, None] < M) & (at[None, :] < K), other=0.0)
        right = tl.load(b + at[:, None] * N + columns[None, :], mask=(at[:, None] < K) & (columns[None, :] < N), other=0.0)
        total = tl.dot(left, right, total)
    return total, rows[:, None] * N + columns[None, :], (rows[:, None] < M) & (columns[None, :] < N)


@triton.jit
def stream_k(a, b, c, pieces, flags, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ATOMIC: tl.constexpr):
    # Every program has the same share of all the steps of all the tiles, wherever in a tile it starts or ends.
    program, programs = tl.program_id(0), tl.num_programs(0)
    per_tile, across = tl.cdiv(K, BK), tl.cdiv(N, BN)
    steps = tl.cdiv(M, BM) * across * per_tile
    share = tl.cdiv(steps, programs)
    step, end = program * share, min((program + 1) * share, steps)
    element = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    while step < end:
        tile = step // per_tile
        first = step - tile * per_tile
        last = min(per_tile, first + end - step)
        total, at, inside = partial(a, b, tile // across, tile % across, first, last, M, N, K, BM, BN, BK)
        if ATOMIC:
            tl.atomic_add(c + at, total, mask=inside, sem="relaxed")
        elif first == 0:
            # Who has the start of a tile waits for the programs that have the rest of it.
            other = program
            while last < per_tile:
                other += 1
                while tl.atomic_add(flags + other, 0, sem="acquire", scope="gpu") == 0:
                    pass
                tl.debug_barrier()
                total += tl.load(pieces + other * BM * BN + element, cache_modifier=".cg")
                last += share
            tl.store(c + at, total, mask=inside)
        else:
            tl.store(pieces + program * BM * BN + element, total, cache_modifier=".cg")
            tl.debug_barrier()
            tl.atomic_xchg(flags + program, 1, sem="release", scope="gpu")
        step += last - first if ATOMIC or first > 0 else per_tile - first


@triton.jit
def split_k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr):
    steps = tl.cdiv(K, BK)
    share = tl.cdiv(steps, PARTS)
    first = tl.program_id(2) * share
    total, at, inside = partial(a, b, tl.program_id(0), tl.program_id(1), first, min(first + share, steps), M, N, K, BM, BN, BK)
    tl.atomic_add(c + at, total, mask=inside)


@triton.jit
def typed(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr):
    # `a` is M by K, `b` N by K: products of 8 bits want both operands along K. The last axis of the grid is the batch.
    batch = tl.program_id(2).to(tl.int64)
    a, b, c = a + batch * M * K, b + batch * N * K, c + batch * M * N
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=OUT)
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + at[None, :], mask=rows[:, None] < M, other=0.0)
        right = tl.load(b + columns[None, :] * K + at[:, None], mask=columns[None, :] < N, other=0.0)
        total = tl.dot(left, right, total, out_dtype=OUT)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def batched(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COUNT: tl.constexpr):
    # Several small products in one program, as one product of three-dimensional blocks.
    batch = (tl.program_id(0) * COUNT + tl.arange(0, COUNT))[:, None, None]
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + batch * M * K + m[None, :, None] * K + k[None, None, :])
    right = tl.load(b + batch * K * N + k[None, :, None] * N + n[None, None, :])
    tl.store(c + batch * M * N + m[None, :, None] * N + n[None, None, :], tl.dot(left, right))


start()
triton.set_allocator(allocate)
random = np.random.default_rng(7)
processors = triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]


def half(*shape):
    return random.uniform(-1, 1, shape).astype(np.float16)


def report(name, compiled, found, wanted, tolerance=2e-3):
    print(f"{name}: {instructions(compiled)}", flush=True)
    close(found, wanted, tolerance, name)


# More tiles than there are processors, and no length is a multiple of 64.
M, N, K = 816, 720, 112
a, b = half(M, K), half(K, N)
wanted = a.astype(np.float32) @ b.astype(np.float32)
for BM, BN, warps, stages, flatten in [(64, 64, 4, 3, False), (64, 64, 4, 4, True), (128, 64, 8, 3, False)]:
    c = zeros(M, N, type=np.float16)
    tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    compiled = persistent[(min(processors, tiles),)](Array(a), Array(b), c, M, N, K, BM=BM, BN=BN, BK=32, GROUP=4, FLATTEN=flatten,
                                                     num_warps=warps, num_stages=stages)
    report(f"persistent, {BM} by {BN}, {warps} warps, {stages} stages", compiled, c.read(), wanted)

# Descriptors made on the host are tensor maps among the parameters; those made by the kernel are written to memory.
weights = np.ascontiguousarray(b.T)
cases = [(64, 64, 4, 3, False, False, 1), (128, 64, 8, 4, True, False, 1), (64, 64, 4, 3, False, True, 1), (128, 64, 4, 3, False, False, 2)]
for BM, BN, warps, stages, flatten, specialize, ctas in cases:
    c = zeros(M, N, type=np.float16)
    arguments = [TensorDescriptor.from_tensor(array, block)
                 for array, block in [(Array(a), [BM, 64]), (Array(weights), [BN, 64]), (c, [BM, BN])]]
    compiled = by_descriptors[(24,)](*arguments, M, N, K, BM=BM, BN=BN, BK=64, GROUP=4, FLATTEN=flatten, SPECIALIZE=specialize,
                                     num_warps=warps, num_stages=stages, num_ctas=ctas)
    name = f"descriptors of the host, {BM} by {BN}, {warps} warps, {stages} stages{f', clusters of {ctas}' if ctas > 1 else ''}"
    report(name, compiled, c.read(), wanted)
for warps, stages, specialize in [(4, 3, False), (8, 4, False), (4, 3, True)]:
    c = zeros(M, N, type=np.float16)
    compiled = descriptors_made_here[(24,)](Array(a), Array(weights), c, M, N, K, BM=128, BN=64, BK=64, GROUP=4,
                                            SPECIALIZE=specialize, num_warps=warps, num_stages=stages)
    report(f"descriptors of the kernel, {warps} warps, {stages} stages", compiled, c.read(), wanted)

M, N, K = 208, 176, 528
a, b = half(M, K), half(K, N)
wanted = a.astype(np.float32) @ b.astype(np.float32)
for programs, atomic, warps in [(10, False, 4), (10, False, 8), (23, False, 4), (10, True, 4)]:
    c, pieces, flags = zeros(M, N), zeros(programs, 64, 64), zeros(programs, type=np.int32)
    compiled = stream_k[(programs,)](Array(a), Array(b), c, pieces, flags, M, N, K, BM=64, BN=64, BK=32, ATOMIC=atomic, num_warps=warps)
    report(f"stream-K, {programs} programs, {'atomics' if atomic else 'flags'}, {warps} warps", compiled, c.read(), wanted)
c = zeros(M, N)
compiled = split_k[(triton.cdiv(M, 64), triton.cdiv(N, 64), 3)](Array(a), Array(b), c, M, N, K, BM=64, BN=64, BK=64, PARTS=3)
report("split-K", compiled, c.read(), wanted)

M, N, K = 130, 90, 128
for kind in ["float8e4nv", "float8e5", "bfloat16", "int8", "float32"]:
    shapes = [(2, M, K), (2, N, K)]
    if kind == "bfloat16":
        operands = [bfloat16(random.uniform(-1, 1, shape)) for shape in shapes]
        values = [from_bfloat16(bits) for bits in operands]
    elif kind == "int8":
        operands = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
        values = [operand.astype(np.float64) for operand in operands]
    elif kind == "float32":
        operands = values = [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    else:
        # Codes below that of 2: without infinities and NaNs, with numbers below the smallest normal one.
        mantissa, bias = (3, 7) if kind == "float8e4nv" else (2, 15)
        operands = [(random.integers(0, 64, shape) | (random.integers(0, 2, shape) << 7)).astype(np.uint8) for shape in shapes]
        values = [from_float8(codes, mantissa, bias) for codes in operands]
    wanted = np.einsum("bmk,bnk->bmn", *values)
    for BM, warps in [(64, 4), (128, 8), (32, 4)] if "8" in kind else [(64, 4), (32, 4)]:
        c = zeros(2, M, N, type=np.int32 if kind == "int8" else np.float32)
        compiled = typed[(triton.cdiv(M, BM), 2, 2)](Array(operands[0], kind), Array(operands[1], kind), c, M, N, K, BM=BM, BN=64, BK=64,
                                                     OUT=tl.int32 if kind == "int8" else tl.float32, num_warps=warps)
        # TF32 keeps 10 bits of a float32; the 8-bit products sum with fewer bits than float32 has.
        report(f"{kind}, {BM} by 64, {warps} warps", compiled, c.read(), wanted, 1e-9 if kind == "int8" else 2e-3)

a, b = half(12, 32, 64), half(12, 64, 32)
c = zeros(12, 32, 32)
compiled = batched[(3,)](Array(a), Array(b), c, M=32, N=32, K=64, COUNT=4)
report("batched, three dimensions", compiled, c.read(), a.astype(np.float32) @ b.astype(np.float32))
print("PASSED")
