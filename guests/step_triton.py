"""The kernels around a step's forward pass and its draw, a program a row, without a sync.

`feed_kernel` before the pass puts in the tokens that were drawn by the step before. Around the
draw, `bias_kernel` subtracts penalties from the logits in place, and `describe_kernel` takes them
back and gives what log probabilities are made of.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.device_results import DETAILS, RANKS
from statevisor.guests.ranks_triton import exponent, order_of, weight_of
from statevisor.guests.step_rows import BEST, BIAS, BIAS_END, GIVEN, SLOT, TOKEN, WIDTH
from statevisor.hypervisor.plan import DRAWN

_P = tl.constexpr(WIDTH)
_SLOT, _TOKEN = tl.constexpr(SLOT), tl.constexpr(TOKEN)
_BIAS, _BIAS_END, _BEST = tl.constexpr(BIAS), tl.constexpr(BIAS_END), tl.constexpr(BEST)
_DRAWN, _GIVEN = tl.constexpr(DRAWN), tl.constexpr(GIVEN)
_FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
_LOWEST_KEY = tl.constexpr(-(1 << 63))

_DETAILS = tl.constexpr(DETAILS)
_RANKS = tl.constexpr(RANKS)


@triton.jit
def feed_kernel(rows, starts, last, tokens, slots):
    """Slots of a step, and the tokens of its rows of one token; where there is nothing to follow,
    token 0 into the padding slot."""
    index = tl.program_id(0).to(tl.int64)
    row = rows + index * _P
    slot, token = tl.load(row + _SLOT), tl.load(row + _TOKEN)
    if token == _DRAWN:
        token = tl.load(last + slot)
        slot = tl.where(token < 0, 0, slot)
        token = tl.maximum(token, 0)
    tl.store(slots + index, slot)
    if token != _GIVEN:
        tl.store(tokens + tl.load(starts + index), token)


@triton.jit
def bias_kernel(logits, rows, ids, amounts, saved, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Subtract a row's amounts from its logits; what was there goes to `saved`.

    A logit that is not finite stays, so that the draw finds it.
    """
    index = tl.program_id(0).to(tl.int64)
    row = rows + index * _P
    begin, end = tl.load(row + _BIAS), tl.load(row + _BIAS_END)
    at = tl.arange(0, TILE)
    for place in range(begin, end, TILE):
        here = place + at
        inside = here < end
        cell = logits + index * VOCAB + tl.load(ids + here, mask=inside, other=0)
        old = tl.load(cell, mask=inside, other=0.0)
        new = old - tl.load(amounts + here, mask=inside, other=0.0)
        new = tl.minimum(tl.maximum(new, -_FLOAT_MAX), _FLOAT_MAX)
        tl.store(saved + here, old, mask=inside)
        tl.store(cell, tl.where(old * 0.0 == 0.0, new, old), mask=inside)


@triton.jit
def unbias(logits, begin, end, ids, saved, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    for place in range(begin, end, TILE):
        here = place + at
        inside = here < end
        cell = logits + tl.load(ids + here, mask=inside, other=0)
        tl.store(cell, tl.load(saved + here, mask=inside, other=0.0), mask=inside)


@triton.jit
def rank_below(logits, key, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The key of the highest rank below `key`."""
    at = tl.arange(0, TILE)
    best = tl.full((TILE,), _LOWEST_KEY, tl.int64)
    for begin in range(0, VOCAB, TILE):
        ids = begin + at
        inside = ids < VOCAB
        value = tl.load(logits + ids, mask=inside, other=0.0)
        found = (order_of(value).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
        best = tl.maximum(best, tl.where(inside & (found < key), found, _LOWEST_KEY))
    return tl.max(best, axis=0)


@triton.jit
def weight_sum(logits, high, VOCAB: tl.constexpr, TILE: tl.constexpr):
    at = tl.arange(0, TILE)
    sums = tl.zeros((TILE,), tl.int64)
    for begin in range(0, VOCAB, TILE):
        inside = begin + at < VOCAB
        value = tl.load(logits + begin + at, mask=inside, other=0.0)
        sums += tl.where(inside, weight_of(exponent(value, high, 1.0)), 0)
    return tl.sum(sums, axis=0)


@triton.jit
def describe_kernel(
    logits,
    rows,
    results,
    ids,
    saved,
    details,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    FEW: tl.constexpr,
):
    """Details of the rows that want log probabilities and have drawn a token."""
    index = tl.program_id(0).to(tl.int64)
    row = rows + index * _P
    count = tl.load(row + _BEST)
    token = tl.load(results + 2 * index)
    if (count >= 0) & (token >= 0):
        logits += index * VOCAB
        out = details + index * _DETAILS
        unbias(logits, tl.load(row + _BIAS), tl.load(row + _BIAS_END), ids, saved, FEW)
        tl.debug_barrier()
        key = rank_below(logits, count * 0 + 0x7FFFFFFFFFFFFFFF, VOCAB, TILE)
        high = (key >> 32).to(tl.int32)
        bits = high ^ ((high >> 31) & 0x7FFFFFFF)
        tl.store(out, high.to(tl.int64))
        tl.store(out + 1, weight_sum(logits, bits.to(tl.float32, bitcast=True), VOCAB, TILE))
        tl.store(out + 2, order_of(tl.load(logits + token)).to(tl.int64))
        for rank in range(0, count):
            tl.store(out + _RANKS + rank, key)
            key = rank_below(logits, key, VOCAB, TILE)
