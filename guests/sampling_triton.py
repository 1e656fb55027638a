"""The draws of `guests/sampling.py` as one Triton kernel, a program a row: the same bits, no sync.

The arithmetic is that file's. What differs is how a cut is found, since a GPU sorts badly:
`cuts_triton.py` says how.

How many passes over a row: greedy 1, drawn 3, and 3 more for each of top_k and top_p. A program has
16 warps: with 8 a pass took longer on an H200, by a quarter to a half, at 256 and 1024 rows too.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from statevisor.guests.cuts_triton import (
    BINS,
    ORDER_LOW,
    PER,
    bracket,
    list_bracket,
    place_in_few,
    place_in_list,
    spread,
)
from statevisor.guests.ranks_triton import exponent, is_kept, logit_of, order_of, weight_of
from statevisor.guests.step_rows import (
    DRAWS,
    FLAGS,
    FLOOR,
    LAST,
    LIMIT,
    POSITION,
    SCALE,
    SEED,
    SHARE,
    STOPS,
    WIDTH,
)

_WHOLE = tl.constexpr(1 << 30)
_P = tl.constexpr(WIDTH)
_FLAGS, _SEED, _POSITION = tl.constexpr(FLAGS), tl.constexpr(SEED), tl.constexpr(POSITION)
_LAST = tl.constexpr(LAST)
_SCALE, _LIMIT, _SHARE = tl.constexpr(SCALE), tl.constexpr(LIMIT), tl.constexpr(SHARE)
_FLOOR, _DRAWS = tl.constexpr(FLOOR), tl.constexpr(DRAWS)
_STOPS = tl.constexpr(STOPS)

#: Tokens of one turn over a list.
LIST = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """Elements of one turn of a pass over a row, and warps of a program; the bits are the same."""

    tile: int
    warps: int


def shape_of(vocab: int) -> Shape:
    """The shape of programs for so many logits."""
    return Shape(min(8192, max(512, triton.next_power_of_2(vocab))), 16)


@triton.jit
def share_of(total, share):
    """ceil(total * share / 2^30); no product leaves 63 bits."""
    low = (total & 0x3FFFFFFF) * share
    return (total >> 30) * share + ((low + 0x3FFFFFFF) >> 30)


@triton.jit
def scaled(total, high, low):
    """floor(u * total / 2^62) of the random number u = high * 2^31 + low."""
    t1, t0 = total >> 31, total & 0x7FFFFFFF
    return high * t1 + ((high * t0 + low * t1 + ((low * t0) >> 31)) >> 31)


@triton.jit
def uniform62(seed, position):
    """Philox4x32-10 under (seed, position) as `philox.uniform62`: two halves of 31 bits."""
    c0, c1 = position & 0xFFFFFFFF, position >> 32
    c2, c3 = position & 0, position & 0
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in tl.static_range(10):
        # the multipliers 0xD2511F53 and 0xCD9E8D57 in halves, so that int64 holds the products
        even_low = c0 * 0x1F53
        even_mid = c0 * 0xD251 + (even_low >> 16)
        odd_low = c2 * 0x8D57
        odd_mid = c2 * 0xCD9E + (odd_low >> 16)
        even_word = ((even_mid & 0xFFFF) << 16) | (even_low & 0xFFFF)
        odd_word = ((odd_mid & 0xFFFF) << 16) | (odd_low & 0xFFFF)
        c0, c1, c2, c3 = (odd_mid >> 16) ^ c1 ^ k0, odd_word, (even_mid >> 16) ^ c3 ^ k1, even_word
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0 >> 1, c1 >> 1


@triton.jit
def best_of(logits, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Order and id of the highest rank, and whether every logit is finite."""
    at = tl.arange(0, TILE)
    best = tl.full((TILE,), -(1 << 63), tl.int64)
    bad = tl.zeros((TILE,), tl.int32)
    for begin in range(0, VOCAB, TILE):
        ids = begin + at
        inside = ids < VOCAB
        value = tl.load(logits + ids, mask=inside, other=0.0)
        bad = bad | (inside & (value * 0.0 != 0.0)).to(tl.int32)
        key = (order_of(value).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
        best = tl.maximum(best, tl.where(inside, key, -(1 << 63)))
    top = tl.max(best, axis=0)
    return (top >> 32).to(tl.int32), 0x7FFFFFFF - (top & 0x7FFFFFFF), tl.max(bad, axis=0) == 0


@triton.jit
def kept_weights(
    logits, begin, high, scale, floor, cut_order, cut_id, VOCAB: tl.constexpr, TILE: tl.constexpr
):
    """Weights of a tile with zeros for what is cut."""
    ids = begin + tl.arange(0, TILE)
    inside = ids < VOCAB
    value = tl.load(logits + ids, mask=inside, other=0.0)
    weight = weight_of(exponent(value, high, scale))
    kept = inside & is_kept(order_of(value), ids, cut_order, cut_id) & (weight >= floor)
    return tl.where(kept, weight, 0)


@triton.jit
def drawn_from(
    logits, row, listed, high, VOCAB: tl.constexpr, TILE: tl.constexpr, LIST: tl.constexpr
):
    """The token that a row's settings and its random number pick."""
    scale = tl.load(row + _SCALE).to(tl.int32).to(tl.float32, bitcast=True)
    limit, share = tl.load(row + _LIMIT), tl.load(row + _SHARE)
    floor = tl.load(row + _FLOOR)
    cut_order = (limit * 0).to(tl.int32) + ORDER_LOW
    cut_id = limit * 0 + VOCAB
    total = limit * 0 - 1  # not known
    for stage in range(2):
        by_count = stage == 0
        if (by_count & (limit > 0) & (limit < VOCAB)) | ((stage == 1) & (share < _WHOLE)):
            coarse_first, coarse_last = stage * 0, stage * 0 + BINS - 1
            first, last = coarse_first, coarse_last
            top, per = scale * 0.0, scale * 0.0 + PER
            goal = limit
            for level in range(2):
                if level == 1:
                    coarse_first, coarse_last = first, last
                    top = first.to(tl.float32) * (-1.0 / PER)
                    per = PER / (last - first + 1).to(tl.float32)
                    per = per * BINS
                counts, gathered, before = spread(
                    logits,
                    high,
                    scale,
                    by_count,
                    coarse_first,
                    coarse_last,
                    top,
                    per,
                    cut_order,
                    cut_id,
                    VOCAB,
                    TILE,
                )
                if (level == 0) & (stage == 1):
                    goal = share_of(gathered, share)
                first, last = bracket(counts, by_count, goal - before, top, per)
            # the last bin weighs nothing: a cut in it or behind it leaves the weights as they are
            if coarse_first < BINS - 1:
                count, before = list_bracket(
                    logits,
                    listed,
                    high,
                    scale,
                    by_count,
                    coarse_first,
                    coarse_last,
                    top,
                    per,
                    first,
                    last,
                    cut_order,
                    cut_id,
                    VOCAB,
                    TILE,
                )
                tl.debug_barrier()
                if count <= LIST:
                    cut_order, cut_id, total = place_in_few(
                        logits, listed, count, before, goal, high, scale, by_count, LIST
                    )
                else:
                    cut_order, cut_id, total = place_in_list(
                        logits, listed, count, before, goal, high, scale, by_count, LIST
                    )
                tl.debug_barrier()
                total = tl.where(by_count | (floor > 0), -1, total)
    if total < 0:
        sums = tl.zeros((TILE,), tl.int64)
        for begin in range(0, VOCAB, TILE):
            sums += kept_weights(logits, begin, high, scale, floor, cut_order, cut_id, VOCAB, TILE)
        total = tl.sum(sums, axis=0)
    u1, u0 = uniform62(tl.load(row + _SEED), tl.load(row + _POSITION))
    goal = scaled(total, u1, u0)
    begin = (limit * 0).to(tl.int32)
    tile = kept_weights(logits, begin, high, scale, floor, cut_order, cut_id, VOCAB, TILE)
    here = tl.sum(tile, axis=0)
    while here <= goal:
        goal -= here
        begin += TILE
        tile = kept_weights(logits, begin, high, scale, floor, cut_order, cut_id, VOCAB, TILE)
        here = tl.sum(tile, axis=0)
    return begin + tl.sum((tl.cumsum(tile, axis=0) <= goal).to(tl.int32), axis=0)


@triton.jit
def draw_kernel(
    logits,
    hidden,
    rows,
    slots,
    last,
    listed,
    results,
    channels,
    VOCAB: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    LIST: tl.constexpr,
):
    """results[row] = (token or -1, state); last[slot] = what may be followed.

    state: 1; 0 if the row is not finite; 2 if its slot is the padding slot, that is, it was not
    run. A token that is one of the row's stops, or stands at its LAST position or behind it, is not
    to be followed: last[slot] is then -1, as without a token. The row's POSITION goes one on.
    """
    index = tl.program_id(0).to(tl.int64)
    row = rows + index * _P
    slot = tl.load(slots + index)
    at = tl.arange(0, C)
    own = tl.load(hidden + index * channels + at, mask=at < channels, other=0.0).to(tl.float32)
    finite = tl.max((own * 0.0 != 0.0).to(tl.int32), axis=0) == 0
    token = slot * 0 - 1
    if (slot > 0) & finite & ((tl.load(row + _FLAGS) & _DRAWS) != 0):
        logits += index * VOCAB
        order, best, sound = best_of(logits, VOCAB, TILE)
        finite = sound
        if sound:
            token = best
            if tl.load(row + _SCALE) != 0:
                token = drawn_from(
                    logits, row, listed + index * VOCAB, logit_of(order), VOCAB, TILE, LIST
                ).to(tl.int64)
    tl.store(results + 2 * index, token)
    tl.store(results + 2 * index + 1, tl.where(slot > 0, finite.to(tl.int64), 2))
    stops = tl.load(row + _STOPS + tl.arange(0, 8))
    position = tl.load(row + _POSITION)
    stopped = tl.max((stops == token).to(tl.int32), axis=0) > 0
    stopped = stopped | (position >= tl.load(row + _LAST))
    tl.store(last + slot, tl.where(stopped, -1, token))
    tl.debug_barrier()
    tl.store(row + _POSITION, position + 1)
