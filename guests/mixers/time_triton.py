"""The WKV-7 recurrence with all elementwise work around it as Triton kernels.

One token a row is a kernel of its own: a few programs on every multiprocessor walk over the rows
of one head each, and the copies of the next rows' states are under way while one is worked on.
Longer rows take three: one prepares what the recurrence reads, for all tokens at once; one walks
over them, a quarter of a head a program, and does nothing but the recurrence; the last norms and
gates what that read. Both ways give the same bits: every state is held as it is stored and stepped
by tiles whose sums run over the same channels in the same lanes of one warp
(`tests/unit/guests/test_compiled_triton.py` reads the layouts); the sums of a head's norm are of
integers, which have no order; all else is elementwise. Fused multiply-adds are written out, nothing
is autotuned and no scalar argument is specialised.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.launch_triton import EARLY, allow_next, await_previous
from statevisor.guests.mixers.wkv7_triton import HEAD, sigmoid

#: Order of the vectors [H, 8, 64] that a head is described by.
VECTORS = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln_x_weight", "ln_x_bias")
QUARTER = tl.constexpr(16)
#: Rows at most of a program that walks over single tokens.
MOST_TURNS = tl.constexpr(64)
#: Vectors kept per token and head between the kernels of longer rows.
KEYS = tl.constexpr(6)


@triton.jit
def _total(x):
    """The sum over the channels of a head, x [64], or of some heads [H, 64]."""
    if len(x.shape) == 1:
        return tl.sum(x, axis=0)
    else:
        return tl.sum(x, axis=1)[:, None]


@triton.jit
def _most(x):
    """The greatest over the channels of a head or of some."""
    if len(x.shape) == 1:
        return tl.max(x, axis=0)
    else:
        return tl.max(x, axis=1)[:, None]


@triton.jit
def _norm(k, k_k):
    """The length of a head's k k_k."""
    kk = k.to(tl.float32) * k_k
    return tl.sqrt(_total(kk * kk))


@triton.jit
def _keys(k, w, a, w0, a0, k_k, k_a, norm):
    """decay, kk, b = kk a and k of one token, of one head [64] or of some [H, 64]."""
    k = k.to(tl.float32)
    # exp(-0.5) = 0.6065306597126334: the greatest decay rate.
    decay = tl.exp(-0.6065306597126334 * sigmoid(w0 + w.to(tl.float32)))
    a = sigmoid(a0 + a.to(tl.float32))
    # Written as a comparison so that a NaN norm stays a NaN.
    kk = k * k_k / tl.where(norm < 1e-12, 1e-12, norm)
    return decay, kk, kk * a, k * (1.0 + (a - 1.0) * k_a)


@triton.jit
def _mixed(v, gate, first, bias):
    """v moved towards the first layer's."""
    v = v.to(tl.float32)
    return v + (first.to(tl.float32) - v) * sigmoid(bias + gate.to(tl.float32))


@triton.jit
def _stepped(stored, decay, kk, b, k, r, v):
    """Rows of a state [V, 64] after a token, as they are stored, and y [V]; v is [V]."""
    V: tl.constexpr = stored.shape[0]
    s = stored.to(tl.float32)
    removed = -tl.sum(s * kk, axis=1)
    added = tl.fma(
        tl.broadcast_to(removed[:, None], V, HEAD),
        tl.broadcast_to(b, V, HEAD),
        v[:, None] * k,
    )
    s = tl.fma(s, tl.broadcast_to(decay, V, HEAD), added)
    return s.to(stored.dtype), tl.sum(s * r, axis=1)


@triton.jit
def _grain(most):
    """What sums of numbers not further from 0 than `most` are counted in: 2^-22 of it."""
    return tl.maximum(most, 1e-30) * (1.0 / 4194304.0)


@triton.jit
def _grains(x, grain):
    """x in whole grains, as integers: so the order of their sum does not matter, and kernels that
    hold x otherwise agree."""
    # Beside 1.5 x 2^23 a float32 is whole, and its lower bits count: cheaper than a conversion.
    inverse, x = tl.broadcast(1.0 / grain, x)
    whole = tl.fma(x, inverse, tl.full(x.shape, 12582912.0, tl.float32))
    return whole.to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def _mean(count, grain):
    return _total(count).to(tl.float32) * grain / HEAD


@triton.jit
def _mean4(a, b, c, d):
    """The mean of a head in quarters."""
    most = _most(tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), tl.abs(d))))
    grain = _grain(most)
    count = (_grains(a, grain) + _grains(b, grain)) + (_grains(c, grain) + _grains(d, grain))
    return _mean(count, grain)


@triton.jit
def _scale(variance, EPS: tl.constexpr):
    return 1.0 / tl.sqrt(variance + EPS)


@triton.jit
def _gated(centred, scale, weight, bias, bonus, v, g):
    """A head's y less its mean, normed, with the bonus, times the gate."""
    return (centred * scale * weight + bias + bonus * v) * g.to(tl.float32)


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


@triton.jit
def _held(cell):
    """A head's state in quarters of its rows; cell: where the first is."""
    s0 = tl.load(cell)
    s1 = tl.load(cell + QUARTER * HEAD)
    s2 = tl.load(cell + 2 * QUARTER * HEAD)
    s3 = tl.load(cell + 3 * QUARTER * HEAD)
    return s0, s1, s2, s3


@triton.jit
def _keep(cell, held):
    """The reverse of `_held`."""
    tl.store(cell, held[0])
    tl.store(cell + QUARTER * HEAD, held[1])
    tl.store(cell + 2 * QUARTER * HEAD, held[2])
    tl.store(cell + 3 * QUARTER * HEAD, held[3])


@triton.jit
def _copied(
    vectors,
    downs,
    ups,
    head,
    token,
    HEADS: tl.constexpr,
    PITCH: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The norm of a head's keys and its sum r k r_k, where warps share out a program.

    A sum of floats is one warp's, or its order would be another: so each makes its own copy.
    """
    width: tl.constexpr = HEADS * HEAD
    at = tl.zeros((WARPS, 1), tl.int32) + tl.arange(0, HEAD)[None, :]
    vector = vectors + head * (8 * HEAD) + at
    down = downs + token * PITCH + head * HEAD + at
    up = ups + token * (4 * width) + head * HEAD + at
    w0, a0 = tl.load(vector), tl.load(vector + HEAD)
    k_k, k_a = tl.load(vector + 3 * HEAD), tl.load(vector + 4 * HEAD)
    r, k = tl.load(down).to(tl.float32), tl.load(down + width)
    norm = _norm(k, k_k)
    _, _, _, k = _keys(k, tl.load(up), tl.load(up + width), w0, a0, k_k, k_a, norm)
    bonus = _total(r * k * tl.load(vector + 5 * HEAD))
    return tl.max(tl.max(norm, axis=1), axis=0), tl.max(tl.max(bonus, axis=1), axis=0)


@triton.jit
def _turn(
    held,
    described,
    vectors,
    downs,
    ups,
    first,
    head,
    token,
    HEADS: tl.constexpr,
    PITCH: tl.constexpr,
    GATED: tl.constexpr,
    EPS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """A head's state in quarters after a token, and what goes to the output's product [64]."""
    w0, a0, v0, k_k, k_a, r_k, weight, bias = described
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)
    down = downs + token * PITCH + head * HEAD + at
    up = ups + token * (4 * width) + head * HEAD + at
    r, k = tl.load(down).to(tl.float32), tl.load(down + width)
    w, a = tl.load(up), tl.load(up + width)
    if WARPS == 1:
        norm = _norm(k, k_k)
        decay, kk, b, k = _keys(k, w, a, w0, a0, k_k, k_a, norm)
        bonus = _total(r * k * r_k)
    else:
        norm, bonus = _copied(vectors, downs, ups, head, token, HEADS, PITCH, WARPS)
        decay, kk, b, k = _keys(k, w, a, w0, a0, k_k, k_a, norm)
    v = tl.load(down + 2 * width).to(tl.float32)
    if GATED:
        from_first = tl.load(first + token * PITCH + 2 * width + head * HEAD + at)
        v = _mixed(v, tl.load(up + 3 * width), from_first, v0)
    va, vb, vc, vd = _quarters(v)
    keys = (decay[None, :], kk[None, :], b[None, :], k[None, :], r[None, :])
    s0, y0 = _stepped(held[0], *keys, va)
    s1, y1 = _stepped(held[1], *keys, vb)
    s2, y2 = _stepped(held[2], *keys, vc)
    s3, y3 = _stepped(held[3], *keys, vd)
    mean = _mean4(y0, y1, y2, y3)
    y0, y1, y2, y3 = y0 - mean, y1 - mean, y2 - mean, y3 - mean
    scale = _scale(_mean4(y0 * y0, y1 * y1, y2 * y2, y3 * y3), EPS)
    centred = _whole(y0, y1, y2, y3)
    g = tl.load(up + 2 * width)
    return (s0, s1, s2, s3), _gated(centred, scale, weight, bias, bonus, v, g)


@triton.jit
def _ask(state):
    """Ask for a head's state into the second-level cache, a piece a thread of a warp."""
    piece: tl.constexpr = HEAD * HEAD // 32
    size: tl.constexpr = piece * state.dtype.element_ty.primitive_bitwidth // 8
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,n",
        [state + tl.arange(0, 32) * piece, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


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
    WARPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out = (GroupNorm(y) + (sum r k r_k) v) g with y of the recurrence, for rows of one token.

    downs [N, PITCH]: r, k and v in the first 3 x 64 HEADS columns; ups [N, 4 x 64 HEADS]: w, a, g
    and v's gate; first: `downs` of the first layer, whose v the others mix in where GATED. STRIDE
    is the bank's row stride in elements. A program walks over the rows of one head, at most
    MOST_TURNS, with a stride of the programs per head; STAGES: rows that are under way at a time,
    with 1 a program has one row. WARPS: of a program, which share out the rows of its state. Slots
    and the first row's state are read, or asked for, before the kernel before has ended, since
    nothing else of a pass writes them.
    """
    head = tl.program_id(0)
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)
    quarter = tl.arange(0, QUARTER)[:, None] * HEAD + at[None, :]
    vector = vectors + head * (8 * HEAD) + at
    described = (
        tl.load(vector),
        tl.load(vector + HEAD),
        tl.load(vector + 2 * HEAD),
        tl.load(vector + 3 * HEAD),
        tl.load(vector + 4 * HEAD),
        tl.load(vector + 5 * HEAD),
        tl.load(vector + 6 * HEAD),
        tl.load(vector + 7 * HEAD),
    )
    wide = tl.zeros((), tl.int64)
    begin, each = tl.program_id(1), tl.num_programs(1)
    states = state + head * (HEAD * HEAD)
    operands = (described, vectors, downs, ups, first, head)
    if STAGES == 1:
        token = wide + begin
        cell = states + tl.load(slots + token) * STRIDE + quarter
        held = _held(cell)
        await_previous(DEPENDENT)
        held, result = _turn(held, *operands, token, HEADS, PITCH, GATED, EPS, WARPS)
        allow_next(DEPENDENT)
        _keep(cell, held)
        tl.store(out + token * width + head * HEAD + at, result.to(out.dtype.element_ty))
    else:
        visited = begin + tl.arange(0, MOST_TURNS) * each
        visits = tl.load(slots + tl.minimum(visited, rows - 1)).to(tl.int32)
        if DEPENDENT == EARLY:
            # The first row's state; the next ones' are under way by themselves.
            _ask(states + tl.load(slots + begin) * STRIDE)
        await_previous(DEPENDENT)
        for row in tl.range(begin, rows, each, num_stages=STAGES):
            token = wide + row
            # Not asked for here: a load on whose result another hangs is one more that must come
            # before anything is under way.
            slot = wide + tl.sum(tl.where(visited == row, visits, 0), axis=0)
            # Found anew, or the addresses would be kept from the row's first turn on.
            home = wide + tl.max(tl.where(visited == row, visits, 0), axis=0)
            held = _held(states + slot * STRIDE + quarter)
            held, result = _turn(held, *operands, token, HEADS, PITCH, GATED, EPS, WARPS)
            _keep(states + home * STRIDE + quarter, held)
            tl.store(out + token * width + head * HEAD + at, result.to(out.dtype.element_ty))
        allow_next(DEPENDENT)


@triton.jit
def _place(channel, WIDE: tl.constexpr):
    """Where a vector of the keys has a channel.

    A thread that holds eight channels of a row asks for them by four at a time. So that one request
    of a warp is for memory side by side, the first fours of all threads come first, then the rest.
    """
    if WIDE:
        channel = channel % 8 // 4 * (HEAD // 2) + channel // 8 * 4 + channel % 4
        # here, since what is said of a call's result is forgotten
        channel = tl.max_contiguous(tl.multiple_of(channel, (1, 4)), (1, 4))
    return channel


@triton.jit
def prompt_keys_kernel(
    downs,
    ups,
    first,
    vectors,
    keys,
    bonus,
    HEADS: tl.constexpr,
    PITCH: tl.constexpr,
    GATED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """What the recurrence takes of BLOCK_H heads of one token, for rows of any number of tokens.

    Operands as in `token_kernel`. keys [N, HEADS, 6, 64] float32: decay, kk, b, k and r, their
    channels where `_place` puts them, and v; bonus [N, HEADS] float32: sum r k r_k. A head is one
    warp's.
    """
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)[None, :]
    real = (head < HEADS) & (at < HEAD)
    vector = vectors + head * (8 * HEAD) + at
    w0 = tl.load(vector, mask=real, other=0.0)
    a0 = tl.load(vector + HEAD, mask=real, other=0.0)
    v0 = tl.load(vector + 2 * HEAD, mask=real, other=0.0)
    k_k = tl.load(vector + 3 * HEAD, mask=real, other=0.0)
    k_a = tl.load(vector + 4 * HEAD, mask=real, other=0.0)
    r_k = tl.load(vector + 5 * HEAD, mask=real, other=0.0)
    await_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    down = downs + token * PITCH + head * HEAD + at
    up = ups + token * (4 * width) + head * HEAD + at
    r = tl.load(down, mask=real, other=0.0).to(tl.float32)
    k = tl.load(down + width, mask=real, other=0.0)
    w = tl.load(up, mask=real, other=0.0)
    a = tl.load(up + width, mask=real, other=0.0)
    decay, kk, b, k = _keys(k, w, a, w0, a0, k_k, k_a, _norm(k, k_k))
    v = tl.load(down + 2 * width, mask=real, other=0.0).to(tl.float32)
    if GATED:
        from_first = first + token * PITCH + 2 * width + head * HEAD + at
        gate = tl.load(up + 3 * width, mask=real, other=0.0)
        v = _mixed(v, gate, tl.load(from_first, mask=real, other=0.0), v0)
    key = keys + (token * HEADS + head) * (KEYS * HEAD)
    out = key + _place(at, WIDE)
    tl.store(out, decay, mask=real)
    tl.store(out + HEAD, kk, mask=real)
    tl.store(out + 2 * HEAD, b, mask=real)
    tl.store(out + 3 * HEAD, k, mask=real)
    tl.store(out + 4 * HEAD, r, mask=real)
    tl.store(key + 5 * HEAD + at, v, mask=real)
    tl.store(bonus + token * HEADS + head, _total(r * k * r_k), mask=head < HEADS)


@triton.jit
def _asked(key, at, at_v):
    """decay, kk, b, k and r in tiles of equal rows, which land where they are used; and v [V]."""
    decay = tl.load(key + at)
    kk = tl.load(key + HEAD + at)
    b = tl.load(key + 2 * HEAD + at)
    k = tl.load(key + 3 * HEAD + at)
    r = tl.load(key + 4 * HEAD + at)
    return decay, kk, b, k, r, tl.load(key + 5 * HEAD + at_v)


@triton.jit
def prompt_kernel(
    keys,
    state,
    y_out,
    slots,
    starts,
    HEADS: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The recurrence of rows of any number of tokens, a quarter of one head of one row a program.

    keys: as in `prompt_keys_kernel`. y_out [N, 64 HEADS] float32. A state of 16 bits is rounded
    after every token. A program's warps share out its channels [v], so that each has little to do
    between two tokens; a channel's sums stay within a warp.
    """
    await_previous(DEPENDENT)
    head = tl.program_id(0) // 4
    row = tl.program_id(1)
    pitch: tl.constexpr = HEADS * (KEYS * HEAD)
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)[None, :]
    place = _place(at, WIDE) + tl.zeros((QUARTER, 1), tl.int32)
    at_v = (tl.program_id(0) % 4) * QUARTER + tl.arange(0, QUARTER)
    slot = tl.load(slots + row)
    begin = tl.load(starts + row)
    end = tl.load(starts + row + 1)
    cell = state + slot * STRIDE + head * (HEAD * HEAD) + at_v[:, None] * HEAD + at
    if begin < end:
        s = tl.load(cell)
        key = keys + head * (KEYS * HEAD)
        out = y_out + head * HEAD + at_v
        pair = out[:, None] + tl.arange(0, 2)[None, :] * width
        # Two tokens a turn, each one's vectors asked for a whole token ahead: the chain from token
        # to token is then arithmetic only. Behind the last token the last is read again.
        a0, a1, a2, a3, a4, a5 = _asked(key + begin * pitch, place, at_v)
        b0, b1, b2, b3, b4, b5 = _asked(key + tl.minimum(begin + 1, end - 1) * pitch, place, at_v)
        for t in range(begin, end - 1, 2):
            s, y = _stepped(s, a0, a1, a2, a3, a4, a5)
            a0, a1, a2, a3, a4, a5 = _asked(key + tl.minimum(t + 2, end - 1) * pitch, place, at_v)
            s, next_y = _stepped(s, b0, b1, b2, b3, b4, b5)
            b0, b1, b2, b3, b4, b5 = _asked(key + tl.minimum(t + 3, end - 1) * pitch, place, at_v)
            # Behind the loads, which would have to wait for a store before them; both at once,
            # since they change places among the warps.
            tl.store(pair + t * width, tl.join(y, next_y))
        if (end - begin) % 2 == 1:
            s, y = _stepped(s, a0, a1, a2, a3, a4, a5)
            tl.store(out + (end - 1) * width, y)
        tl.store(cell, s)


@triton.jit
def prompt_output_kernel(
    y_in,
    keys,
    bonus,
    ups,
    vectors,
    out,
    HEADS: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The rest of `token_kernel` after `prompt_kernel`, BLOCK_H heads of one token a program."""
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    width: tl.constexpr = HEADS * HEAD
    at = tl.arange(0, HEAD)[None, :]
    real = (head < HEADS) & (at < HEAD)
    vector = vectors + head * (8 * HEAD) + at
    weight = tl.load(vector + 6 * HEAD, mask=real, other=0.0)
    bias = tl.load(vector + 7 * HEAD, mask=real, other=0.0)
    await_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    here = token * width + head * HEAD + at
    key = keys + (token * HEADS + head) * (KEYS * HEAD) + at
    y = tl.load(y_in + here, mask=real, other=0.0)
    factor = tl.load(bonus + token * HEADS + head, mask=head < HEADS, other=0.0)
    v = tl.load(key + 5 * HEAD, mask=real, other=0.0)
    g = tl.load(ups + token * (3 * width) + 2 * width + here, mask=real, other=0.0)
    grain = _grain(_most(tl.abs(y)))
    y -= _mean(_grains(y, grain), grain)
    square = y * y
    grain = _grain(_most(square))
    scale = _scale(_mean(_grains(square, grain), grain), EPS)
    result = _gated(y, scale, weight, bias, factor, v, g)
    tl.store(out + here, result.to(out.dtype.element_ty), mask=real)
