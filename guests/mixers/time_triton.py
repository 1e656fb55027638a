"""The WKV-7 recurrence with all elementwise work around it as Triton kernels.

One token a row is a kernel of its own: a few programs on every multiprocessor walk over the rows
of one head each, and the copies of the next rows' states are under way while one is worked on.
Longer rows are walked by one program per quarter of a head, and a last kernel norms and gates what
these read. Both give the same bits: every state is held as it is stored and stepped by quarters of
16 channels [v]; the sums over channels are made by the same functions on tiles of one shape and one
layout (`tests/unit/guests/test_compiled_triton.py` reads the layouts); a head's norm is put
together from its quarters' moments in scalars; all else is elementwise. Fused multiply-adds are
written out, nothing is autotuned and no scalar argument is specialised.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.launch_triton import await_previous
from statevisor.guests.mixers.wkv7_triton import HEAD, sigmoid

#: Order of the vectors [H, 8, 64] that a head is described by.
VECTORS = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln_x_weight", "ln_x_bias")
QUARTER = tl.constexpr(16)
#: Numbers kept per token and head between the two kernels of longer rows.
KEPT = tl.constexpr(16)


@triton.jit
def _keys(r, k, w, a, w0, a0, k_k, k_a, r_k):
    """decay, kk, b = kk a, k, r [64] and the bonus' factor sum r k r_k of one head and token."""
    r = r.to(tl.float32)
    k = k.to(tl.float32)
    # exp(-0.5) = 0.6065306597126334: the greatest decay rate.
    decay = tl.exp(-0.6065306597126334 * sigmoid(w0 + w.to(tl.float32)))
    a = sigmoid(a0 + a.to(tl.float32))
    kk = k * k_k
    norm = tl.sqrt(tl.sum(kk * kk, axis=0))
    # Written as a comparison so that a NaN norm stays a NaN.
    kk = kk / tl.where(norm < 1e-12, 1e-12, norm)
    k = k * (1.0 + (a - 1.0) * k_a)
    bonus = tl.sum(r * k * r_k, axis=0)
    return decay, kk, kk * a, k, r, bonus


@triton.jit
def _mixed(v, gate, first, bias):
    """v moved towards the first layer's."""
    v = v.to(tl.float32)
    return v + (first.to(tl.float32) - v) * sigmoid(bias + gate.to(tl.float32))


@triton.jit
def _stepped(stored, decay, kk, b, k, r, v):
    """A quarter of a state [16, 64] after a token, as it is stored; y [16], its mean and moment."""
    s = stored.to(tl.float32)
    removed = -tl.sum(s * kk[None, :], axis=1)
    added = tl.fma(
        tl.broadcast_to(removed[:, None], QUARTER, HEAD),
        tl.broadcast_to(b[None, :], QUARTER, HEAD),
        v[:, None] * k[None, :],
    )
    s = tl.fma(s, tl.broadcast_to(decay[None, :], QUARTER, HEAD), added)
    y = tl.sum(s * r[None, :], axis=1)
    mean = tl.sum(y, axis=0) / QUARTER
    centred = y - mean
    return s.to(stored.dtype), y, mean, tl.sum(centred * centred, axis=0)


@triton.jit
def _norm(m0, m1, m2, m3, q0, q1, q2, q3, EPS: tl.constexpr):
    """Mean and scale of a head from its quarters' means and moments, scalars or vectors of them."""
    mean = ((m0 + m1) + (m2 + m3)) / 4
    m0 -= mean
    m1 -= mean
    m2 -= mean
    m3 -= mean
    between = (m0 * m0 + m1 * m1) + (m2 * m2 + m3 * m3)
    variance = (((q0 + q1) + (q2 + q3)) + between * QUARTER) / HEAD
    return mean, 1.0 / tl.sqrt(variance + EPS)


@triton.jit
def _gated(y, mean, scale, weight, bias, bonus, v, g):
    return ((y - mean) * scale * weight + bias + bonus * v) * g.to(tl.float32)


@triton.jit
def _quarters(x):
    """Channels 0..15, 16..31, 32..47 and 48..63 of x [64]."""
    halves = tl.permute(tl.reshape(x, (2, 2, QUARTER)), (2, 0, 1))
    even, odd = tl.split(halves)
    q0, q2 = tl.split(even)
    q1, q3 = tl.split(odd)
    return q0, q1, q2, q3


@triton.jit
def _whole(q0, q1, q2, q3):
    """The reverse of `_quarters`."""
    halves = tl.join(tl.join(q0, q2), tl.join(q1, q3))
    return tl.reshape(tl.permute(halves, (1, 2, 0)), (HEAD,))


@triton.jit(do_not_specialize=["rows"])
def token_kernel(
    downs,
    ups,
    first,
    vectors,
    state,
    out,
    slots,
    rows: tl.int32,
    HEADS: tl.constexpr,
    STRIDE: tl.constexpr,
    PITCH: tl.constexpr,
    GATED: tl.constexpr,
    EPS: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out = (GroupNorm(y) + (sum r k r_k) v) g with y of the recurrence, for rows of one token.

    downs [N, PITCH]: r, k and v in the first 3 x 64 HEADS columns; ups [N, 4 x 64 HEADS]: w, a, g
    and v's gate; first: `downs` of the first layer, whose v the others mix in where GATED. STRIDE
    is the bank's row stride in elements. A program walks over the rows of one head with a stride
    of the programs per head; STAGES: rows that are under way at a time.
    """
    head = tl.program_id(0)
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)
    quarter = tl.arange(0, QUARTER)[:, None] * HEAD + at[None, :]
    vector = vectors + head * (8 * HEAD) + at
    w0 = tl.load(vector)
    a0 = tl.load(vector + HEAD)
    v0 = tl.load(vector + 2 * HEAD)
    k_k = tl.load(vector + 3 * HEAD)
    k_a = tl.load(vector + 4 * HEAD)
    r_k = tl.load(vector + 5 * HEAD)
    weight = tl.load(vector + 6 * HEAD)
    bias = tl.load(vector + 7 * HEAD)
    wide = tl.zeros((), tl.int64)
    # Nothing writes the vectors; all else waits.
    await_previous(DEPENDENT)
    for row in tl.range(tl.program_id(1), rows, tl.num_programs(1), num_stages=STAGES):
        token = wide + row
        cell = state + tl.load(slots + token) * STRIDE + head * (HEAD * HEAD) + quarter
        s0 = tl.load(cell)
        s1 = tl.load(cell + QUARTER * HEAD)
        s2 = tl.load(cell + 2 * QUARTER * HEAD)
        s3 = tl.load(cell + 3 * QUARTER * HEAD)
        down = downs + token * PITCH + head * HEAD + at
        up = ups + token * (4 * width) + head * HEAD + at
        r, k = tl.load(down), tl.load(down + width)
        decay, kk, b, k, r, bonus = _keys(
            r, k, tl.load(up), tl.load(up + width), w0, a0, k_k, k_a, r_k
        )
        v = tl.load(down + 2 * width).to(tl.float32)
        if GATED:
            from_first = tl.load(first + token * PITCH + 2 * width + head * HEAD + at)
            v = _mixed(v, tl.load(up + 3 * width), from_first, v0)
        va, vb, vc, vd = _quarters(v)
        s0, y0, m0, q0 = _stepped(s0, decay, kk, b, k, r, va)
        s1, y1, m1, q1 = _stepped(s1, decay, kk, b, k, r, vb)
        s2, y2, m2, q2 = _stepped(s2, decay, kk, b, k, r, vc)
        s3, y3, m3, q3 = _stepped(s3, decay, kk, b, k, r, vd)
        tl.store(cell, s0)
        tl.store(cell + QUARTER * HEAD, s1)
        tl.store(cell + 2 * QUARTER * HEAD, s2)
        tl.store(cell + 3 * QUARTER * HEAD, s3)
        mean, scale = _norm(m0, m1, m2, m3, q0, q1, q2, q3, EPS)
        y = _whole(y0, y1, y2, y3)
        result = _gated(y, mean, scale, weight, bias, bonus, v, tl.load(up + 2 * width))
        tl.store(out + token * width + head * HEAD + at, result.to(out.dtype.element_ty))


@triton.jit
def prompt_kernel(
    downs,
    ups,
    first,
    vectors,
    state,
    y_out,
    kept,
    slots,
    starts,
    HEADS: tl.constexpr,
    STRIDE: tl.constexpr,
    PITCH: tl.constexpr,
    GATED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The recurrence of rows of any number of tokens, one quarter of one head of one row a program.

    Operands as in `token_kernel`. y_out [N, 64 HEADS] float32; kept [N, HEADS, 16]: four means,
    four moments and the bonus' factor, for `prompt_output_kernel`. A state of 16 bits is rounded
    after every token.
    """
    await_previous(DEPENDENT)
    head = tl.program_id(0) // 4
    part = tl.program_id(0) % 4
    row = tl.program_id(1)
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)
    at_v = part * QUARTER + tl.arange(0, QUARTER)
    slot = tl.load(slots + row)
    begin = tl.load(starts + row)
    end = tl.load(starts + row + 1)
    cell = state + slot * STRIDE + head * (HEAD * HEAD) + at_v[:, None] * HEAD + at[None, :]
    if begin < end:
        s = tl.load(cell)
        vector = vectors + head * (8 * HEAD)
        w0 = tl.load(vector + at)
        a0 = tl.load(vector + HEAD + at)
        v0 = tl.load(vector + 2 * HEAD + at_v)
        k_k = tl.load(vector + 3 * HEAD + at)
        k_a = tl.load(vector + 4 * HEAD + at)
        r_k = tl.load(vector + 5 * HEAD + at)
        # The next token's vectors are asked for before this one's are used: the chain from token to
        # token is then arithmetic only, not a trip to memory.
        down = downs + begin * PITCH + head * HEAD
        up = ups + begin * (4 * width) + head * HEAD
        next_r = tl.load(down + at)
        next_k = tl.load(down + width + at)
        next_w = tl.load(up + at)
        next_a = tl.load(up + width + at)
        next_v = tl.load(down + 2 * width + at_v)
        if GATED:
            next_gate = tl.load(up + 3 * width + at_v)
            next_first = tl.load(first + begin * PITCH + 2 * width + head * HEAD + at_v)
        for t in range(begin, end):
            decay, kk, b, k, r, bonus = _keys(next_r, next_k, next_w, next_a, w0, a0, k_k, k_a, r_k)
            v = next_v.to(tl.float32)
            if GATED:
                v = _mixed(v, next_gate, next_first, v0)
            more = at < tl.where(t + 1 < end, HEAD, 0)
            more_v = at_v < tl.where(t + 1 < end, HEAD, 0)
            down = downs + (t + 1) * PITCH + head * HEAD
            up = ups + (t + 1) * (4 * width) + head * HEAD
            next_r = tl.load(down + at, mask=more, other=0.0)
            next_k = tl.load(down + width + at, mask=more, other=0.0)
            next_w = tl.load(up + at, mask=more, other=0.0)
            next_a = tl.load(up + width + at, mask=more, other=0.0)
            next_v = tl.load(down + 2 * width + at_v, mask=more_v, other=0.0)
            if GATED:
                next_gate = tl.load(up + 3 * width + at_v, mask=more_v, other=0.0)
                ahead = first + (t + 1) * PITCH + 2 * width + head * HEAD + at_v
                next_first = tl.load(ahead, mask=more_v, other=0.0)
            s, y, mean, moment = _stepped(s, decay, kk, b, k, r, v)
            tl.store(y_out + t * width + head * HEAD + at_v, y)
            keep = kept + (t * HEADS + head) * KEPT
            tl.store(keep + part, mean)
            tl.store(keep + 4 + part, moment)
            if part == 0:
                tl.store(keep + 8, bonus)
        tl.store(cell, s)


@triton.jit
def prompt_output_kernel(
    y_in,
    kept,
    downs,
    ups,
    first,
    vectors,
    out,
    HEADS: tl.constexpr,
    PITCH: tl.constexpr,
    GATED: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The rest of `token_kernel` after `prompt_kernel`, BLOCK_H heads of one token a program."""
    await_previous(DEPENDENT)
    width: tl.constexpr = HEADS * HEAD
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    real = head < HEADS
    keep = kept + (token * HEADS + head) * KEPT
    m0 = tl.load(keep, mask=real, other=0.0)
    m1 = tl.load(keep + 1, mask=real, other=0.0)
    m2 = tl.load(keep + 2, mask=real, other=0.0)
    m3 = tl.load(keep + 3, mask=real, other=0.0)
    q0 = tl.load(keep + 4, mask=real, other=0.0)
    q1 = tl.load(keep + 5, mask=real, other=0.0)
    q2 = tl.load(keep + 6, mask=real, other=0.0)
    q3 = tl.load(keep + 7, mask=real, other=0.0)
    bonus = tl.load(keep + 8, mask=real, other=0.0)
    mean, scale = _norm(m0, m1, m2, m3, q0, q1, q2, q3, EPS)
    at = tl.arange(0, HEAD)[None, :]
    here = head[:, None] * HEAD + at
    real = real[:, None]
    down = downs + token * PITCH + 2 * width + here
    up = ups + token * (4 * width) + 2 * width + here
    vector = vectors + head[:, None] * (8 * HEAD) + at
    v = tl.load(down, mask=real, other=0.0).to(tl.float32)
    if GATED:
        from_first = tl.load(first + token * PITCH + 2 * width + here, mask=real, other=0.0)
        gate = tl.load(up + width, mask=real, other=0.0)
        v = _mixed(v, gate, from_first, tl.load(vector + 2 * HEAD, mask=real, other=0.0))
    y = tl.load(y_in + token * width + here, mask=real, other=0.0)
    weight = tl.load(vector + 6 * HEAD, mask=real, other=0.0)
    bias = tl.load(vector + 7 * HEAD, mask=real, other=0.0)
    g = tl.load(up, mask=real, other=0.0)
    result = _gated(y, mean[:, None], scale[:, None], weight, bias, bonus[:, None], v, g)
    tl.store(out + token * width + here, result.to(out.dtype.element_ty), mask=real)
