"""The WKV-7 recurrence and the elementwise work around it as Triton kernels.

One binary serves prefill and decode: a program owns one tile of one head of one row, loops over
the row's tokens and reads and writes `bank[slot]` in place. So that no bit depends on how the
tokens were cut or on who else is in the batch, nothing here is autotuned, fused multiply-adds are
written out (launches turn the compiler's own contraction off), no scalar argument is specialised,
and every reduction runs over the 64 channels of one head inside one warp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.launch_triton import await_previous

#: Channels of one head; the kernels reduce over exactly these.
HEAD = tl.constexpr(64)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def wkv7_kernel(
    r,
    decay,
    k,
    v,
    kk,
    a,
    state,
    y,
    slots,
    starts,
    HEADS: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """S = S diag(w) - (S kk)(kk a)^T + v k^T; y = S r, one (row, head, v-tile) a program.

    STRIDE is the bank's row stride in elements; with int64 slots the product is int64. A state of
    16 bits is rounded after every token, so one launch over T tokens equals T launches.
    """
    await_previous(DEPENDENT)
    row = tl.program_id(1)
    tiles: tl.constexpr = HEAD // BLOCK_V
    head = tl.program_id(0) // tiles
    at_v = (tl.program_id(0) % tiles) * BLOCK_V + tl.arange(0, BLOCK_V)
    at_k = tl.arange(0, HEAD)
    slot = tl.load(slots + row)
    begin = tl.load(starts + row)
    end = tl.load(starts + row + 1)
    cell = state + slot * STRIDE + head * (HEAD * HEAD) + at_v[:, None] * HEAD + at_k[None, :]
    if begin < end:
        s = tl.load(cell).to(tl.float32)
        # The next token's vectors are asked for before this one's are used: the chain from token to
        # token is then arithmetic only, not a trip to memory.
        here = begin * (HEADS * HEAD) + head * HEAD
        next_w = tl.load(decay + here + at_k)
        next_kk = tl.load(kk + here + at_k)
        next_a = tl.load(a + here + at_k)
        next_k = tl.load(k + here + at_k)
        next_r = tl.load(r + here + at_k)
        next_v = tl.load(v + here + at_v)
        for t in range(begin, end):
            here = t * (HEADS * HEAD) + head * HEAD
            w_t = next_w
            kk_t = next_kk.to(tl.float32)
            b_t = kk_t * next_a.to(tl.float32)
            k_t = next_k.to(tl.float32)
            r_t = next_r.to(tl.float32)
            v_t = next_v.to(tl.float32)
            width = tl.where(t + 1 < end, HEAD, 0)
            more_k = at_k < width
            more_v = at_v < width
            ahead = here + HEADS * HEAD
            next_w = tl.load(decay + ahead + at_k, mask=more_k, other=0.0)
            next_kk = tl.load(kk + ahead + at_k, mask=more_k, other=0.0)
            next_a = tl.load(a + ahead + at_k, mask=more_k, other=0.0)
            next_k = tl.load(k + ahead + at_k, mask=more_k, other=0.0)
            next_r = tl.load(r + ahead + at_k, mask=more_k, other=0.0)
            next_v = tl.load(v + ahead + at_v, mask=more_v, other=0.0)
            removed = -tl.sum(s * kk_t[None, :], axis=1)
            added = tl.fma(
                tl.broadcast_to(removed[:, None], BLOCK_V, HEAD),
                tl.broadcast_to(b_t[None, :], BLOCK_V, HEAD),
                v_t[:, None] * k_t[None, :],
            )
            s = tl.fma(s, tl.broadcast_to(w_t[None, :], BLOCK_V, HEAD), added)
            tl.store(y + here + at_v, tl.sum(s * r_t[None, :], axis=1))
            s = s.to(state.dtype.element_ty).to(tl.float32)
        tl.store(cell, s.to(state.dtype.element_ty))


@triton.jit
def inputs_kernel(
    w,
    k,
    v,
    a,
    v_gate,
    v_first,
    w0,
    a0,
    v0,
    k_k,
    k_a,
    decay_out,
    k_out,
    v_out,
    kk_out,
    a_out,
    HEADS: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The elementwise part before the recurrence, BLOCK_H heads of one token a program."""
    await_previous(DEPENDENT)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    at = head[:, None] * HEAD + tl.arange(0, HEAD)[None, :]
    real = (head < HEADS)[:, None]
    here = tl.program_id(0).to(tl.int64) * (HEADS * HEAD) + at
    w_x = tl.load(w + here, mask=real, other=0.0).to(tl.float32)
    a_x = tl.load(a + here, mask=real, other=0.0).to(tl.float32)
    k_x = tl.load(k + here, mask=real, other=0.0).to(tl.float32)
    v_x = tl.load(v + here, mask=real, other=0.0)
    w_b = tl.load(w0 + at, mask=real, other=0.0)
    a_b = tl.load(a0 + at, mask=real, other=0.0)
    # exp(-0.5) = 0.6065306597126334: the greatest decay rate.
    decay = tl.exp(-0.6065306597126334 * sigmoid(w_b + w_x))
    gate = sigmoid(a_b + a_x)
    kk = k_x * tl.load(k_k + at, mask=real, other=0.0)
    norm = tl.sqrt(tl.sum(kk * kk, axis=1))
    # Written as a comparison so that a NaN norm stays a NaN.
    kk = kk / tl.where(norm < 1e-12, 1e-12, norm)[:, None]
    k_x = k_x * (1.0 + (gate - 1.0) * tl.load(k_a + at, mask=real, other=0.0))
    if GATED:
        value = v_x.to(tl.float32)
        mix = sigmoid(
            tl.load(v0 + at, mask=real, other=0.0)
            + tl.load(v_gate + here, mask=real, other=0.0).to(tl.float32)
        )
        first = tl.load(v_first + here, mask=real, other=0.0).to(tl.float32)
        v_x = (value + (first - value) * mix).to(v_out.dtype.element_ty)
    tl.store(decay_out + here, decay, mask=real)
    tl.store(k_out + here, k_x.to(k_out.dtype.element_ty), mask=real)
    tl.store(v_out + here, v_x, mask=real)
    tl.store(kk_out + here, kk.to(kk_out.dtype.element_ty), mask=real)
    tl.store(a_out + here, gate.to(a_out.dtype.element_ty), mask=real)


@triton.jit
def output_kernel(
    y,
    r,
    k,
    v,
    g,
    weight,
    bias,
    r_k,
    out,
    HEADS: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """(GroupNorm(y) + (sum r k r_k) v) g, BLOCK_H heads of one token a program."""
    await_previous(DEPENDENT)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    at = head[:, None] * HEAD + tl.arange(0, HEAD)[None, :]
    real = (head < HEADS)[:, None]
    here = tl.program_id(0).to(tl.int64) * (HEADS * HEAD) + at
    y_x = tl.load(y + here, mask=real, other=0.0)
    r_x = tl.load(r + here, mask=real, other=0.0).to(tl.float32)
    k_x = tl.load(k + here, mask=real, other=0.0).to(tl.float32)
    v_x = tl.load(v + here, mask=real, other=0.0).to(tl.float32)
    g_x = tl.load(g + here, mask=real, other=0.0).to(tl.float32)
    centred = y_x - (tl.sum(y_x, axis=1) / HEAD)[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / HEAD + EPS)
    normed = centred * scale[:, None] * tl.load(weight + at, mask=real, other=0.0)
    normed += tl.load(bias + at, mask=real, other=0.0)
    bonus = tl.sum(r_x * k_x * tl.load(r_k + at, mask=real, other=0.0), axis=1)
    result = (normed + bonus[:, None] * v_x) * g_x
    tl.store(out + here, result.to(out.dtype.element_ty), mask=real)
