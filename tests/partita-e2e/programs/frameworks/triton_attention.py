"""Attention with an online softmax, forward and backward (FlashAttention, FlashAttention-2), and other fused layers of models."""
import numpy as np
import triton
import triton.language as tl

from arrays import Array, close, instructions, start, zeros


@triton.jit
def some_rows(matrix, rows, N, D: tl.constexpr):
    return tl.load(matrix + rows[:, None] * D + tl.arange(0, D)[None, :], mask=rows[:, None] < N, other=0.0)


@triton.jit
def attend(q, k, v, most, sums, output, rows, first, last, N, scale, D: tl.constexpr, BN: tl.constexpr,
           CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    # One pass over key blocks. What was summed under a smaller maximum is scaled down before the next block is added.
    for start in tl.range(first, last, BN):
        columns = start + tl.arange(0, BN)
        scores = tl.dot(q, some_rows(k, columns, N, D).T) * scale
        if MASKED:
            seen = columns[None, :] < N
            if CAUSAL:
                seen &= columns[None, :] <= rows[:, None]
            scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.math.exp2(scores - higher[:, None])
        shrink = tl.math.exp2(most - higher)
        sums = sums * shrink + tl.sum(weights, 1)
        values = some_rows(v, columns, N, D)
        output = tl.dot(weights.to(values.dtype), values, output * shrink[:, None])
        most = higher
    return most, sums, output


@triton.jit
def forward(q, k, v, o, logs, N, scale, GROUP: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
            CAUSAL: tl.constexpr):
    # Several heads of queries share one of keys. Exponents are of base 2: `scale` has the factor log2(e) in it.
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q, o, logs = q + head * N * D, o + head * N * D, logs + head * N
    k, v = k + head // GROUP * N * D, v + head // GROUP * N * D
    rows = block * BM + tl.arange(0, BM)
    queries = some_rows(q, rows, N, D)
    most, sums = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
    output = tl.zeros((BM, D), tl.float32)
    # Blocks that every row sees whole need no mask.
    end = tl.minimum(N, (block + 1) * BM) if CAUSAL else N
    whole = (tl.minimum(N, block * BM) if CAUSAL else N) // BN * BN
    most, sums, output = attend(queries, k, v, most, sums, output, rows, 0, whole, N, scale, D, BN, CAUSAL, False)
    most, sums, output = attend(queries, k, v, most, sums, output, rows, whole, end, N, scale, D, BN, CAUSAL, True)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(o + at, (output / sums[:, None]).to(o.dtype.element_ty), mask=rows[:, None] < N)
    tl.store(logs + rows, most + tl.math.log2(sums), mask=rows < N)


@triton.jit
def row_products(o, do, delta, N, D: tl.constexpr, BM: tl.constexpr):
    # The softmax's derivative subtracts from each row of dP the sum of P * dP, which is that of O * dO.
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    tl.store(delta + rows, tl.sum(some_rows(o, rows, N, D).to(tl.float32) * some_rows(do, rows, N, D), 1), mask=rows < N)


@triton.jit
def backward_keys(q, k, v, do, dq, dk, dv, logs, delta, N, scale, turn, GROUP: tl.constexpr, D: tl.constexpr,
                  BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, ADD_QUERIES: tl.constexpr):
    # A block of keys goes over the blocks of queries that see it: dV = P' dO, dS = P * (dO V' - delta), dK = dS' Q.
    block, shared = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns, depth = block * BN + tl.arange(0, BN), tl.arange(0, D)
    keys, values = some_rows(k + shared * N * D, columns, N, D), some_rows(v + shared * N * D, columns, N, D)
    sum_k, sum_v = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    for member in range(GROUP):
        head = shared * GROUP + member
        for start in tl.range(block * BN // BM * BM if CAUSAL else 0, N, BM):
            rows = start + tl.arange(0, BM)
            queries, slopes = some_rows(q + head * N * D, rows, N, D), some_rows(do + head * N * D, rows, N, D)
            at = head * N + rows
            log, less = tl.load(logs + at, mask=rows < N, other=0.0), tl.load(delta + at, mask=rows < N, other=0.0)
            # Everything is turned round, keys down and queries across, so that no sum needs a transposed weight.
            weights = tl.math.exp2(tl.dot(keys, queries.T) * scale - log[None, :])
            seen = (columns[:, None] < N) & (rows[None, :] < N)
            if CAUSAL:
                seen &= columns[:, None] <= rows[None, :]
            weights = tl.where(seen, weights, 0.0)
            sum_v = tl.dot(weights.to(slopes.dtype), slopes, sum_v)
            changes = (weights * (tl.dot(values, slopes.T) - less[None, :])).to(queries.dtype)
            sum_k = tl.dot(changes, queries, sum_k)
            if ADD_QUERIES:
                there = head * N * D + rows[:, None] * D + depth[None, :]
                tl.atomic_add(dq + there, tl.dot(changes.T, keys) * turn, mask=rows[:, None] < N, sem="relaxed")
    at = shared * N * D + columns[:, None] * D + depth[None, :]
    tl.store(dk + at, sum_k * turn, mask=columns[:, None] < N)
    tl.store(dv + at, sum_v, mask=columns[:, None] < N)


@triton.jit
def backward_queries(q, k, v, do, dq, logs, delta, N, scale, turn, GROUP: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr, CAUSAL: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, shared = block * BM + tl.arange(0, BM), head // GROUP * N * D
    queries, slopes = some_rows(q + head * N * D, rows, N, D), some_rows(do + head * N * D, rows, N, D)
    log, less = tl.load(logs + head * N + rows, mask=rows < N, other=0.0), tl.load(delta + head * N + rows, mask=rows < N, other=0.0)
    total = tl.zeros((BM, D), tl.float32)
    for start in tl.range(0, tl.minimum(N, (block + 1) * BM) if CAUSAL else N, BN):
        columns = start + tl.arange(0, BN)
        keys, values = some_rows(k + shared, columns, N, D), some_rows(v + shared, columns, N, D)
        weights = tl.math.exp2(tl.dot(queries, keys.T) * scale - log[:, None])
        seen = columns[None, :] < N
        if CAUSAL:
            seen &= columns[None, :] <= rows[:, None]
        changes = tl.where(seen, weights, 0.0) * (tl.dot(slopes, values.T) - less[:, None])
        total = tl.dot(changes.to(keys.dtype), keys, total)
    tl.store(dq + head * N * D + rows[:, None] * D + tl.arange(0, D)[None, :], total * turn, mask=rows[:, None] < N)


@triton.jit
def norm(x, y, w, b, means, scales, columns, small, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + small)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    result = centred * scale * tl.load(w + at, mask=inside, other=0.0) + tl.load(b + at, mask=inside, other=0.0)
    tl.store(y + row * columns + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward(x, dy, w, means, scales, dx, dw, db, locks, rows, columns, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    # Rows go round the programs. The sums of a program go to a slot that it shares with others, under a lock.
    at = tl.arange(0, BLOCK)
    inside = at < columns
    weight = tl.load(w + at, mask=inside, other=0.0)
    sum_w, sum_b = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        slope = tl.load(dy + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        mean, scale = tl.load(means + row), tl.load(scales + row)
        normal = tl.where(inside, (tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32) - mean) * scale, 0.0)
        weighted = slope * weight
        back = (weighted - (tl.sum(weighted, 0) + normal * tl.sum(weighted * normal, 0)) / columns) * scale
        tl.store(dx + row * columns + at, back.to(dx.dtype.element_ty), mask=inside)
        sum_w += slope * normal
        sum_b += slope
    slot = tl.program_id(0) % SLOTS
    there = slot * columns + at
    while tl.atomic_cas(locks + slot, 0, 1) == 1:
        pass
    tl.store(dw + there, tl.load(dw + there, mask=inside, other=0.0) + sum_w, mask=inside)
    tl.store(db + there, tl.load(db + there, mask=inside, other=0.0) + sum_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(locks + slot, 0)


@triton.jit
def cross_entropy(scores, targets, losses, slopes, columns, BLOCK: tl.constexpr):
    # The loss of a row and its derivative, over a vocabulary that is longer than a block.
    row = tl.program_id(0).to(tl.int64)
    scores, slopes, target = scores + row * columns, slopes + row * columns, tl.load(targets + row)
    most, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(scores + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(values, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(values - higher), 0)
        most = higher
    log = most + tl.log(total)
    tl.store(losses + row, log - tl.load(scores + target).to(tl.float32))
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        slope = tl.exp(tl.load(scores + at, mask=at < columns, other=-float("inf")).to(tl.float32) - log)
        tl.store(slopes + at, tl.where(at == target, slope - 1.0, slope).to(slopes.dtype.element_ty), mask=at < columns)


start()
random = np.random.default_rng(11)


def half(*shape):
    return random.standard_normal(shape, dtype=np.float32).astype(np.float16)


def reference(q, k, v, do, group, causal):
    q, k, v, do = (x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1), do))
    turn, N = q.shape[-1] ** -0.5, q.shape[2]
    scores = q @ k.swapaxes(2, 3) * turn
    if causal:
        scores = np.where(np.tril(np.ones((N, N), bool)), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    o = weights @ v
    changes = weights * (do @ v.swapaxes(2, 3) - (o * do).sum(-1, keepdims=True))
    logs = (np.log(powers.sum(-1)) + scores.max(-1)) * np.log2(np.e)
    shared = [x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)
              for x in (changes.swapaxes(2, 3) @ q * turn, weights.swapaxes(2, 3) @ do)]
    return o, logs, changes @ k * turn, *shared


D, turn = 64, 64**-0.5
cases = [(1, 2, 1, 100, False, 64, 4), (2, 2, 2, 150, True, 64, 4), (1, 2, 1, 200, True, 128, 8), (1, 1, 1, 130, False, 128, 4)]
for batch, heads, group, N, causal, BM, warps in cases:
    q, k, v, do = (half(batch, count, N, D) for count in (heads, heads // group, heads // group, heads))
    wanted = reference(q, k, v, do, group, causal)
    scale, shape, inputs = turn * np.log2(np.e), (batch, heads, N, D), [Array(x) for x in (q, k, v)]
    o, logs, slopes, delta = zeros(*shape, type=np.float16), zeros(*shape[:3]), Array(do), zeros(*shape[:3])
    fixed = {"GROUP": group, "D": D, "BN": 64, "CAUSAL": causal, "num_warps": warps}
    by_rows, by_keys = (triton.cdiv(N, BM), batch * heads), (triton.cdiv(N, 64), batch * heads // group)
    compiled = forward[by_rows](*inputs, o, logs, N, scale, BM=BM, **fixed)
    case = f"{'causal' if causal else 'full'}, {N} rows, blocks of {BM}, {warps} warps"
    print(f"attention, {case}: {instructions(compiled)}", flush=True)
    close(o.read(), wanted[0], 2e-3, "output, " + case)
    close(logs.read(), wanted[1], 1e-3, "log-sum-exp, " + case)
    row_products[(triton.cdiv(batch * heads * N, 64),)](o, slopes, delta, batch * heads * N, D=D, BM=64)
    for add in [False, True]:
        dq, dk, dv = zeros(*shape), zeros(*k.shape), zeros(*k.shape)
        operands, rest = [*inputs, slopes, dq], [logs, delta, N, scale, turn]
        compiled = [backward_keys[by_keys](*operands, dk, dv, *rest, BM=64, **fixed, ADD_QUERIES=add, num_stages=2)]
        if not add:
            compiled.append(backward_queries[by_rows](*operands, *rest, BM=BM, **fixed, num_stages=2))
        print(f"backward, {case}{', dQ by atomics' if add else ''}:", ", ".join(map(instructions, compiled)), flush=True)
        for name, found, known in zip(["dQ", "dK", "dV"], [dq, dk, dv], wanted[2:]):
            close(found.read(), known, 4e-3, f"{name}, {case}")

rows, columns = 37, 300
x, dy, w, b = half(rows, columns), half(rows, columns), half(columns).astype(np.float32), half(columns).astype(np.float32)
y, dx, means, scales = zeros(rows, columns, type=np.float16), zeros(rows, columns, type=np.float16), zeros(rows), zeros(rows)
compiled = norm[(rows,)](Array(x), y, Array(w), Array(b), means, scales, columns, 1e-5, BLOCK=512)
centred = x - x.mean(1, keepdims=True, dtype=np.float32)
scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
normal, weighted = centred * scale, dy * w
close(y.read(), normal * w + b, 1e-3, "layer norm")
dw, db, locks = zeros(4, columns), zeros(4, columns), zeros(4, type=np.int32)
norm_backward[(12,)](Array(x), Array(dy), Array(w), means, scales, dx, dw, db, locks, rows, columns, SLOTS=4, BLOCK=512)
wanted = (weighted - weighted.mean(1, keepdims=True) - normal * (weighted * normal).mean(1, keepdims=True)) * scale
close(dx.read(), wanted, 2e-3, "layer norm, dX")
close(dw.read().sum(0), (dy * normal).sum(0), 1e-4, "layer norm, dW")
close(db.read().sum(0), dy.sum(0, dtype=np.float32), 1e-4, "layer norm, dB")
print("layer norm, forward and backward:", instructions(compiled))

rows, columns = 20, 1000
scores, targets = half(rows, columns) * np.float16(3), random.integers(0, columns, rows)
losses, slopes = zeros(rows), zeros(rows, columns, type=np.float16)
compiled = cross_entropy[(rows,)](Array(scores), Array(targets), losses, slopes, columns, BLOCK=256)
powers = np.exp(scores.astype(np.float32))
close(losses.read(), np.log(powers.sum(1)) - scores[np.arange(rows), targets], 1e-5, "cross entropy")
close(slopes.read(), powers / powers.sum(1, keepdims=True) - np.eye(columns, dtype=np.float32)[targets], 1e-3, "cross entropy, derivative")
print("cross entropy:", instructions(compiled))
print("PASSED")
