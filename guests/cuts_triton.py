"""Where a draw's cut lies, found without sorting, as functions of Triton kernels.

A cut is a place in the order of ranks. A histogram over z brackets the place, a second one over the
bracket narrows it (counts are exact, and so a number of tokens is; a sum of weights lies between
bounds that are rounded outwards). The few tokens of the last bracket are listed, and the place
among them is bisected with exact integer sums. A bracket only decides how long the list is, never
the result.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.ranks_triton import (
    amount_of,
    exponent,
    is_kept,
    order_of,
    weight_of_order,
)

BINS = tl.constexpr(128)
#: Bins of the first histogram in a unit of z.
PER = tl.constexpr(128 / 29.0)
#: Below the order of every logit.
ORDER_LOW = tl.constexpr(-(1 << 31))


@triton.jit
def bin_of(z, top, per):
    """Bins of width 1 / per from `top` down; it never falls while z falls, as ranks do not."""
    place = tl.maximum((top - z) * per, 0.0)
    return tl.minimum(place, BINS - 1.0).to(tl.int32)


@triton.jit
def spread(
    logits,
    high,
    scale,
    by_count,
    first,
    last,
    top,
    per,
    cut_order,
    cut_id,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """What is kept so far of the bins first..last, counted by finer bins from `top` on.

    Also what all that is kept gathers, and what of it stands before the bins.
    """
    at = tl.arange(0, TILE)
    counts = tl.zeros((BINS,), tl.int32)
    sums = tl.zeros((TILE,), tl.int64)
    before = tl.zeros((TILE,), tl.int64)
    for begin in range(0, VOCAB, TILE):
        ids = begin + at
        inside = ids < VOCAB
        value = tl.load(logits + ids, mask=inside, other=0.0)
        kept = inside & is_kept(order_of(value), ids, cut_order, cut_id)
        z = exponent(value, high, scale)
        coarse = bin_of(z, 0.0, PER)
        amount = tl.where(kept, amount_of(z, by_count), 0)
        sums += amount
        before += tl.where(coarse < first, amount, 0)
        here = kept & (coarse >= first) & (coarse <= last)
        counts += tl.histogram(tl.where(here, bin_of(z, top, per), 0), BINS, mask=here)
    return counts, tl.sum(sums, axis=0), tl.sum(before, axis=0)


@triton.jit
def bracket(counts, by_count, wanted, top, per):
    """First and last of these bins in which the cut may lie: where `wanted` is gathered."""
    place = tl.arange(0, BINS).to(tl.float64)
    start, width = top.to(tl.float64), 1.0 / per.to(tl.float64)
    most = tl.exp(start - place * width) * 1099511627776.0 * 1.0001 + 1.0
    least = tl.exp(start - (place + 1.0) * width) * 1099511627776.0 * 0.9999 - 1.0
    most = tl.where(by_count, 1.0, most)
    least = tl.where(by_count, 1.0, tl.maximum(least, 0.0))
    many = counts.to(tl.float64)
    goal = wanted.to(tl.float64)
    # sums of counts are exact; those of weights are not, so the bracket is a little wider
    low = tl.where(by_count, goal, goal * 0.999999)
    high = tl.where(by_count, goal, goal * 1.000001)
    first = tl.sum((tl.cumsum(many * most, axis=0) < low).to(tl.int32), axis=0)
    last = tl.sum((tl.cumsum(many * least, axis=0) < high).to(tl.int32), axis=0)
    return first, tl.minimum(last, BINS - 1)


@triton.jit
def list_bracket(
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
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """List the ids of a bracket, ascending; returns how many and what stands before them."""
    at = tl.arange(0, TILE)
    before = tl.zeros((TILE,), tl.int64)
    found = cut_id * 0
    for begin in range(0, VOCAB, TILE):
        ids = begin + at
        inside = ids < VOCAB
        value = tl.load(logits + ids, mask=inside, other=0.0)
        kept = inside & is_kept(order_of(value), ids, cut_order, cut_id)
        z = exponent(value, high, scale)
        coarse, fine = bin_of(z, 0.0, PER), bin_of(z, top, per)
        here = kept & (coarse >= coarse_first) & (coarse <= coarse_last)
        earlier = (kept & (coarse < coarse_first)) | (here & (fine < first))
        before += tl.where(earlier, amount_of(z, by_count), 0)
        listing = here & (fine >= first) & (fine <= last)
        one = listing.to(tl.int32)
        tl.store(listed + found + tl.cumsum(one, axis=0) - one, ids, mask=listing)
        found += tl.sum(one, axis=0)
    return found, tl.sum(before, axis=0)


@triton.jit
def place_in_few(logits, listed, count, before, goal, high, scale, by_count, LIST: tl.constexpr):
    """As `place_in_list` for a list that registers hold."""
    at = tl.arange(0, LIST)
    inside = at < count
    ids = tl.load(listed + at, mask=inside, other=0)
    value = tl.load(logits + ids, mask=inside, other=0.0)
    order = order_of(value).to(tl.int64)
    amount = tl.where(inside, amount_of(exponent(value, high, scale), by_count), 0)
    low = tl.min(tl.where(inside, order, 1 << 31), axis=0)
    above = tl.max(tl.where(inside, order, ORDER_LOW), axis=0) + 1
    over = before
    while above - low > 1:
        middle = (low + above) >> 1
        gathered = before + tl.sum(tl.where(order >= middle, amount, 0), axis=0)
        enough = gathered >= goal
        low = tl.where(enough, middle, low)
        above = tl.where(enough, above, middle)
        over = tl.where(enough, over, gathered)
    each = weight_of_order(low, high, scale, by_count)
    ties = (goal - over + each - 1) // each
    tie = (inside & (order == low)).to(tl.int32)
    found = (tie > 0) & (tl.cumsum(tie, axis=0) == ties)
    return (
        low.to(tl.int32),
        tl.sum(tl.where(found, ids, 0).to(tl.int64), axis=0),
        over + ties * each,
    )


@triton.jit
def listed_from(logits, listed, count, high, scale, by_count, order, LIST: tl.constexpr):
    """What the listed tokens of at least this order gather."""
    at = tl.arange(0, LIST)
    sums = tl.zeros((LIST,), tl.int64)
    for begin in range(0, count, LIST):
        inside = begin + at < count
        ids = tl.load(listed + begin + at, mask=inside, other=0)
        value = tl.load(logits + ids, mask=inside, other=0.0)
        amount = amount_of(exponent(value, high, scale), by_count)
        sums += tl.where(inside & (order_of(value).to(tl.int64) >= order), amount, 0)
    return tl.sum(sums, axis=0)


@triton.jit
def place_in_list(logits, listed, count, before, goal, high, scale, by_count, LIST: tl.constexpr):
    """Order and id of the last token that is needed to gather `goal`, and what is gathered then."""
    at = tl.arange(0, LIST)
    lows = tl.full((LIST,), 1 << 31, tl.int64)
    highs = tl.full((LIST,), ORDER_LOW, tl.int64)
    for begin in range(0, count, LIST):
        inside = begin + at < count
        ids = tl.load(listed + begin + at, mask=inside, other=0)
        order = order_of(tl.load(logits + ids, mask=inside, other=0.0)).to(tl.int64)
        lows = tl.minimum(lows, tl.where(inside, order, 1 << 31))
        highs = tl.maximum(highs, tl.where(inside, order, ORDER_LOW))
    low, above = tl.min(lows, axis=0), tl.max(highs, axis=0) + 1
    # what is gathered from `low` on reaches the goal, from `above` on it does not
    over = before
    while above - low > 1:
        middle = (low + above) >> 1
        gathered = before + listed_from(logits, listed, count, high, scale, by_count, middle, LIST)
        enough = gathered >= goal
        low = tl.where(enough, middle, low)
        above = tl.where(enough, above, middle)
        over = tl.where(enough, over, gathered)
    each = weight_of_order(low, high, scale, by_count)
    ties = (goal - over + each - 1) // each
    seen = ties * 0
    last = ties * 0
    for begin in range(0, count, LIST):
        inside = begin + at < count
        ids = tl.load(listed + begin + at, mask=inside, other=0)
        order = order_of(tl.load(logits + ids, mask=inside, other=0.0)).to(tl.int64)
        tie = (inside & (order == low)).to(tl.int64)
        found = (tie > 0) & (seen + tl.cumsum(tie, axis=0) == ties)
        last += tl.sum(tl.where(found, ids, 0).to(tl.int64), axis=0)
        seen += tl.sum(tie, axis=0)
    return low.to(tl.int32), last, over + ties * each
