"""Layer norm and token shift as Triton kernels, one program a token.

A row's channels are reduced by one program with a fixed number of warps, so the sum's order depends
on the width alone. The layer norm of a token and of the token before it run through the same
instructions (a loop of one or two turns), since the second must give the bits that an earlier call
left in the bank.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.launch_triton import allow_next, await_previous


@triton.jit
def normalised(x, weight, bias, keep, WIDTH: tl.constexpr, EPS: tl.constexpr):
    mean = tl.sum(x, axis=0) / WIDTH
    centred = tl.where(keep, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / WIDTH
    return centred * (1.0 / tl.sqrt(variance + EPS)) * weight + bias


@triton.jit
def layer_norm_kernel(
    x,
    weight,
    bias,
    out,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Layer norm of one token a program."""
    await_previous(DEPENDENT)
    at = tl.arange(0, BLOCK)
    keep = at < WIDTH
    here = tl.program_id(0).to(tl.int64) * WIDTH + at
    value = tl.load(x + here, mask=keep, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=keep, other=0.0)
    b = tl.load(bias + at, mask=keep, other=0.0)
    h = normalised(value, w, b, keep, WIDTH, EPS)
    tl.store(out + here, h.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["tokens"])
def shift_mix_kernel(
    x,
    weight,
    bias,
    mixes,
    shift,
    spill,
    out,
    rows,
    slots,
    starts,
    tokens: tl.int64,
    MIXES: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """h = LN(x); out[m] = h + (h_prev - h) mixes[m]; the row's last h becomes the new shift.

    A row of one token reads and writes its shift in one program. In a longer row the first token's
    program reads what the last token's program must not overwrite yet: there the new shift goes to
    spill[row], and `settle_kernel` puts it into the bank.
    """
    await_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + token)
    begin = tl.load(starts + row)
    end = tl.load(starts + row + 1)
    slot = tl.load(slots + row)
    at = tl.arange(0, BLOCK)
    keep = at < WIDTH
    w = tl.load(weight + at, mask=keep, other=0.0)
    b = tl.load(bias + at, mask=keep, other=0.0)
    kept_width = tl.where(token == begin, WIDTH, 0)
    kept = tl.load(shift + slot * STRIDE + at, mask=at < kept_width, other=0.0)
    h = kept.to(tl.float32)
    # Not `before = h`: triton 3.6 takes two carried values that begin as one for one.
    before = tl.zeros((BLOCK,), tl.float32)
    for turn in range(tl.maximum(begin, token - 1), token + 1):
        before = h
        value = tl.load(x + turn * WIDTH + at, mask=keep, other=0.0).to(tl.float32)
        h = normalised(value, w, b, keep, WIDTH, EPS)
        h = h.to(out.dtype.element_ty).to(shift.dtype.element_ty).to(tl.float32)
    for m in tl.static_range(MIXES):
        mix = tl.load(mixes + m * WIDTH + at, mask=keep, other=0.0)
        mixed = h + (before - h) * mix
        here = (m * tokens + token) * WIDTH + at
        tl.store(out + here, mixed.to(out.dtype.element_ty), mask=keep)
    new = h.to(shift.dtype.element_ty)
    if end - begin == 1:
        tl.store(shift + slot * STRIDE + at, new, mask=keep)
    elif token == end - 1:
        tl.store(spill + row * WIDTH + at, new, mask=keep)


@triton.jit
def settle_kernel(
    spill,
    shift,
    slots,
    starts,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Copy the new shift of every row of more than one token from spill[row] into the bank."""
    await_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    if tl.load(starts + row + 1) - tl.load(starts + row) > 1:
        at = tl.arange(0, BLOCK)
        keep = at < WIDTH
        new = tl.load(spill + row * WIDTH + at, mask=keep)
        tl.store(shift + tl.load(slots + row) * STRIDE + at, new, mask=keep)


@triton.jit
def _summed(x, parts, at, here, plane, keep, PARTS: tl.constexpr, ACT: tl.constexpr):
    """x[at] plus the planes of `parts` at `here`, in order, rounded as it is stored."""
    value = tl.load(x + at, mask=keep, other=0.0)
    if PARTS:
        total = tl.load(parts + here, mask=keep, other=0.0)
        for part in tl.static_range(1, PARTS):
            total += tl.load(parts + part * plane + here, mask=keep, other=0.0)
        value = (value.to(tl.float32) + total).to(ACT)
    return value


@triton.jit(do_not_specialize=["tokens"])
def residual_mix_kernel(
    x,
    ids,
    parts,
    weight,
    bias,
    mixes,
    shift,
    spill,
    out_x,
    out,
    rows,
    slots,
    starts,
    tokens: tl.int64,
    GATHER: tl.constexpr,
    SINGLE: tl.constexpr,
    EARLY: tl.constexpr,
    PARTS: tl.constexpr,
    MIXES: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out_x = x plus PARTS planes [tokens, WIDTH] float32; then `shift_mix_kernel` of out_x.

    GATHER: x is a table, of which token t takes row ids[t]. SINGLE: every row has one token. The
    vectors, which nothing writes, are read before the kernel before has ended, the mixes too where
    EARLY; and where SINGLE the row's shift, which nothing else of the pass writes.
    """
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < WIDTH
    w = tl.load(weight + at, mask=keep, other=0.0)
    b = tl.load(bias + at, mask=keep, other=0.0)
    moves = ()
    if EARLY:
        # All at once: behind the store before it each would wait for the memory by itself.
        for m in tl.static_range(MIXES):
            moves += (tl.load(mixes + m * WIDTH + at, mask=keep, other=0.0),)
    if SINGLE:
        slot = tl.load(slots + token)
        before = tl.load(shift + slot * STRIDE + at, mask=keep, other=0.0).to(tl.float32)
    await_previous(DEPENDENT)
    row = token if SINGLE else tl.load(rows + token)
    begin = token if SINGLE else tl.load(starts + row)
    end = token + 1 if SINGLE else tl.load(starts + row + 1)
    if SINGLE:
        source = tl.load(ids + token) if GATHER else token
        here = token * WIDTH + at
        value = _summed(
            x, parts, source * WIDTH + at, here, tokens * WIDTH, keep, PARTS, out.dtype.element_ty
        )
        h = normalised(value.to(tl.float32), w, b, keep, WIDTH, EPS)
        h = h.to(out.dtype.element_ty).to(shift.dtype.element_ty).to(tl.float32)
    else:
        slot = tl.load(slots + row)
        kept_width = tl.where(token == begin, WIDTH, 0)
        kept = tl.load(shift + slot * STRIDE + at, mask=at < kept_width, other=0.0)
        h = kept.to(tl.float32)
        # Not `before = h`: triton 3.6 takes two carried values that begin as one for one.
        before = tl.zeros((BLOCK,), tl.float32)
        value = tl.zeros((BLOCK,), out.dtype.element_ty)
        for turn in range(tl.maximum(begin, token - 1), token + 1):
            before = h
            source = tl.load(ids + turn) if GATHER else turn
            here = turn * WIDTH + at
            value = _summed(
                x,
                parts,
                source * WIDTH + at,
                here,
                tokens * WIDTH,
                keep,
                PARTS,
                out.dtype.element_ty,
            )
            h = normalised(value.to(tl.float32), w, b, keep, WIDTH, EPS)
            h = h.to(out.dtype.element_ty).to(shift.dtype.element_ty).to(tl.float32)
    allow_next(DEPENDENT)
    tl.store(out_x + token * WIDTH + at, value, mask=keep)
    for m in tl.static_range(MIXES):
        mix = moves[m] if EARLY else tl.load(mixes + m * WIDTH + at, mask=keep, other=0.0)
        mixed = h + (before - h) * mix
        here = (m * tokens + token) * WIDTH + at
        tl.store(out + here, mixed.to(out.dtype.element_ty), mask=keep)
    new = h.to(shift.dtype.element_ty)
    if end - begin == 1:
        tl.store(shift + slot * STRIDE + at, new, mask=keep)
    elif token == end - 1:
        tl.store(spill + row * WIDTH + at, new, mask=keep)


@triton.jit(do_not_specialize=["tokens"])
def residual_norm_kernel(
    x,
    parts,
    lasts,
    weight,
    bias,
    out,
    tokens: tl.int64,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out[r] = LN(x plus PARTS planes) of token lasts[r], one row a program."""
    await_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(lasts + row)
    at = tl.arange(0, BLOCK)
    keep = at < WIDTH
    w = tl.load(weight + at, mask=keep, other=0.0)
    b = tl.load(bias + at, mask=keep, other=0.0)
    here = token * WIDTH + at
    value = _summed(x, parts, here, here, tokens * WIDTH, keep, PARTS, out.dtype.element_ty)
    h = normalised(value.to(tl.float32), w, b, keep, WIDTH, EPS)
    allow_next(DEPENDENT)
    tl.store(out + row * WIDTH + at, h.to(out.dtype.element_ty), mask=keep)
