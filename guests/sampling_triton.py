"""The draws of `guests/sampling.py` as one Triton kernel, a program a row: the same bits, no sync.

The arithmetic is that file's. What differs is how a cut is found, since a GPU sorts badly. Ranks
are in the order of (logit descending, id ascending), so a cut is a place in that order. A histogram
over z with bins far narrower than the row brackets the place (counts are exact, and so a number of
tokens is; a sum of weights lies between bounds that are rounded outwards). The few tokens of the
bracket are listed, and the place among them is bisected with exact integer sums. The bracket only
decides how long the list is, never the result.

How many passes over a row: greedy 1, drawn 3, and 2 more for each of top_k and top_p.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.step_rows import (
    DRAWS,
    FLAGS,
    FLOOR,
    LIMIT,
    POSITION,
    SCALE,
    SEED,
    SHARE,
    STOPS,
    WIDTH,
)

BINS = tl.constexpr(2048)
#: z below this has weight zero.
_LOWEST = tl.constexpr(-29.0)
_PER_BIN = tl.constexpr(29.0 / 2048)
_WHOLE = tl.constexpr(1 << 30)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, half to even
_ORDER_LOW = tl.constexpr(-(1 << 31))
_P = tl.constexpr(WIDTH)
_FLAGS, _SEED, _POSITION = tl.constexpr(FLAGS), tl.constexpr(SEED), tl.constexpr(POSITION)
_SCALE, _LIMIT, _SHARE = tl.constexpr(SCALE), tl.constexpr(LIMIT), tl.constexpr(SHARE)
_FLOOR, _DRAWS = tl.constexpr(FLOOR), tl.constexpr(DRAWS)
_STOPS = tl.constexpr(STOPS)

#: Elements of one turn of a pass, of one turn over a list, warps of a program.
TILE, LIST, WARPS = 8192, 2048, 16


def tile_of(vocab: int) -> int:
    """Elements of one turn of a pass over so many logits."""
    return min(TILE, max(512, triton.next_power_of_2(vocab)))


@triton.jit
def order_of(logits):
    """int32, ordered as the logits are; both zeros are one."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def logit_of(order):
    """The logit of an order."""
    bits = order ^ ((order >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def exponent(logits, high, scale):
    """z of the weights: at most 0, at least -29."""
    return tl.maximum((logits - high) * scale, _LOWEST)


@triton.jit
def weight_of(z):
    """floor(2^40 exp(z)) as int64; every operation rounds once."""
    n = (z * 1.44269502162933349609375 + _ROUNDER) - _ROUNDER
    r = (z - n * 0.693359375) - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * r + 1.0
    p = p * r + 1.0
    return (p * 1099511627776.0).to(tl.int64) >> (-n).to(tl.int64)


@triton.jit
def bin_of(z):
    """Never falls while z falls, so that the bins are in the order of ranks."""
    return tl.minimum((z * (-1.0 / _PER_BIN)).to(tl.int32), BINS - 1)


@triton.jit
def is_kept(order, ids, cut_order, cut_id):
    """Whether ranks are at or before the cut."""
    return (order > cut_order) | ((order == cut_order) & (ids <= cut_id))


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
def bracket(
    logits, high, scale, limit, share, cut_order, cut_id, VOCAB: tl.constexpr, TILE: tl.constexpr
):
    """First and last bin in which the cut may lie, and how much it has to gather.

    limit: a number of tokens; if it is 0 the cut is `share` of the weights of what is kept so far.
    """
    at = tl.arange(0, TILE)
    counts = tl.zeros((BINS,), tl.int32)
    sums = tl.zeros((TILE,), tl.int64)
    for begin in range(0, VOCAB, TILE):
        ids = begin + at
        inside = ids < VOCAB
        value = tl.load(logits + ids, mask=inside, other=0.0)
        kept = inside & is_kept(order_of(value), ids, cut_order, cut_id)
        z = exponent(value, high, scale)
        counts += tl.histogram(tl.where(kept, bin_of(z), 0), BINS, mask=kept)
        sums += tl.where(kept, weight_of(z), 0)
    goal = share_of(tl.sum(sums, axis=0), share)
    if limit > 0:
        goal = limit
        some = (tl.cumsum(counts, axis=0) < limit).to(tl.int32)
        first = tl.sum(some, axis=0)
        last = first
    else:
        place = tl.arange(0, BINS).to(tl.float64)
        most = tl.exp(place * -_PER_BIN) * 1099511627776.0 * 1.0001 + 1.0
        least = tl.exp((place + 1.0) * -_PER_BIN) * 1099511627776.0 * 0.9999 - 1.0
        least = tl.where((least > 0.0) & (place < BINS - 1), least, 0.0)
        many = counts.to(tl.float64)
        wanted = goal.to(tl.float64)
        first = tl.sum((tl.cumsum(many * most, axis=0) < wanted * 0.999999).to(tl.int32), axis=0)
        last = tl.sum((tl.cumsum(many * least, axis=0) < wanted * 1.000001).to(tl.int32), axis=0)
        last = tl.minimum(last, BINS - 1)
    return first, last, goal


@triton.jit
def list_bracket(
    logits,
    listed,
    high,
    scale,
    by_count,
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
        place = bin_of(z)
        amount = tl.where(by_count, (z * 0.0).to(tl.int64) + 1, weight_of(z))
        before += tl.where(kept & (place < first), amount, 0)
        listing = kept & (place >= first) & (place <= last)
        one = listing.to(tl.int32)
        tl.store(listed + found + tl.cumsum(one, axis=0) - one, ids, mask=listing)
        found += tl.sum(one, axis=0)
    return found, tl.sum(before, axis=0)


@triton.jit
def listed_from(logits, listed, count, high, scale, by_count, order, LIST: tl.constexpr):
    """What the listed tokens of at least this order gather."""
    at = tl.arange(0, LIST)
    sums = tl.zeros((LIST,), tl.int64)
    for begin in range(0, count, LIST):
        inside = begin + at < count
        ids = tl.load(listed + begin + at, mask=inside, other=0)
        value = tl.load(logits + ids, mask=inside, other=0.0)
        z = exponent(value, high, scale)
        amount = tl.where(by_count, (z * 0.0).to(tl.int64) + 1, weight_of(z))
        sums += tl.where(inside & (order_of(value).to(tl.int64) >= order), amount, 0)
    return tl.sum(sums, axis=0)


@triton.jit
def place_in_list(logits, listed, count, before, goal, high, scale, by_count, LIST: tl.constexpr):
    """Order and id of the last token that is needed to gather `goal`."""
    at = tl.arange(0, LIST)
    lows = tl.full((LIST,), 1 << 31, tl.int64)
    highs = tl.full((LIST,), _ORDER_LOW, tl.int64)
    for begin in range(0, count, LIST):
        inside = begin + at < count
        ids = tl.load(listed + begin + at, mask=inside, other=0)
        order = order_of(tl.load(logits + ids, mask=inside, other=0.0)).to(tl.int64)
        lows = tl.minimum(lows, tl.where(inside, order, 1 << 31))
        highs = tl.maximum(highs, tl.where(inside, order, _ORDER_LOW))
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
    each = weight_of(exponent(logit_of(low.to(tl.int32)), high, scale))
    each = tl.where(by_count, each * 0 + 1, tl.maximum(each, 1))
    ties = (goal - over + each - 1) // each
    seen = ties * 0
    last = ties * 0
    for begin in range(0, count, LIST):
        inside = begin + at < count
        ids = tl.load(listed + begin + at, mask=inside, other=0)
        order = order_of(tl.load(logits + ids, mask=inside, other=0.0)).to(tl.int64)
        tie = (inside & (order == low)).to(tl.int64)
        rank = seen + tl.cumsum(tie, axis=0)
        found = (tie > 0) & (rank == ties)
        last += tl.sum(tl.where(found, ids, 0).to(tl.int64), axis=0)
        seen += tl.sum(tie, axis=0)
    return low.to(tl.int32), last


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
    cut_order = (limit * 0).to(tl.int32) + _ORDER_LOW
    cut_id = limit * 0 + VOCAB
    for stage in range(2):
        by_count = stage == 0
        if (by_count & (limit > 0)) | ((stage == 1) & (share < _WHOLE)):
            amount = tl.where(by_count, limit, 0)
            first, last, goal = bracket(
                logits, high, scale, amount, share, cut_order, cut_id, VOCAB, TILE
            )
            # the last bin weighs nothing: a cut in it or behind it leaves the weights as they are
            if first < BINS - 1:
                count, before = list_bracket(
                    logits,
                    listed,
                    high,
                    scale,
                    by_count,
                    first,
                    last,
                    cut_order,
                    cut_id,
                    VOCAB,
                    TILE,
                )
                tl.debug_barrier()
                cut_order, cut_id = place_in_list(
                    logits, listed, count, before, goal, high, scale, by_count, LIST
                )
                tl.debug_barrier()
    sums = tl.zeros((TILE,), tl.int64)
    for begin in range(0, VOCAB, TILE):
        sums += kept_weights(logits, begin, high, scale, floor, cut_order, cut_id, VOCAB, TILE)
    u1, u0 = uniform62(tl.load(row + _SEED), tl.load(row + _POSITION))
    goal = scaled(tl.sum(sums, axis=0), u1, u0)
    begin = (limit * 0).to(tl.int32)
    tile = kept_weights(logits, begin, high, scale, floor, cut_order, cut_id, VOCAB, TILE)
    total = tl.sum(tile, axis=0)
    while total <= goal:
        goal -= total
        begin += TILE
        tile = kept_weights(logits, begin, high, scale, floor, cut_order, cut_id, VOCAB, TILE)
        total = tl.sum(tile, axis=0)
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
    run. A token that is one of the row's stops is not to be followed: last[slot] is then -1, as
    without a token.
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
    stopped = tl.max((stops == token).to(tl.int32), axis=0) > 0
    tl.store(last + slot, tl.where(stopped, -1, token))
