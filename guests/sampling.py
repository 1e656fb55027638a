"""Draws one token per row; a row's result depends on its own logits and Draw alone, bit for bit.

The arithmetic is written out in correctly rounded float32 operations (subtract, multiply, add,
round) and integers, so that neither vector width nor row count, block size or device can change a
bit of it, and integer sums are exact in any order:

    l = logits - bias                                   float32, then clamped to finite values
    greedy: the highest l, ties to the lowest id
    z = (l - max l) * (1 / temperature)                 float32
    w = floor(2^40 exp(z)), int64                       exp: see `_weights`; the highest l has 2^40
    rank by (l descending, id ascending): keep top_k; of these the shortest head whose w sum to at
    least top_p of theirs; of these all with w >= min_p 2^40
    the token is the first, in order of ids, whose running sum of kept w exceeds floor(u S / 2^62),
    S the sum of kept w, u 62 random bits of Philox keyed by (seed, position)

All of it is the same whether a cheaper path skips parts of it for some rows or not. Log
probabilities are those of the raw logits: no bias, temperature or cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from statevisor.guests.philox import uniform62
from statevisor.hypervisor.plan import Logprobs, RowResult
from statevisor.hypervisor.sampling import Draw

#: The sum of a row's weights stays below 2^62.
MAX_VOCAB = 2**22
#: Weight of the likeliest token, as a power of two.
WEIGHT_BITS = 40

#: top_p is used in units of 2^-30.
TOP_P_BITS = 30
#: How many ranks are looked at before a whole row is sorted.
_SHORT_RANKS = 1024
#: Elements of one block on a CPU: what fits its cache beside the temporaries.
_BLOCK = 2**16

_FLOAT_MAX = torch.finfo(torch.float32).max
_LOG2_E = 1.44269502162933349609375
#: ln 2 in two parts; n times the first is exact for |n| < 2^9.
_LN2 = (0.693359375, -2.12194440e-4)
#: exp(r) on |r| <= ln(2)/2, relative error below 1e-7 (Cephes expf); the last two are exact.
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[RowResult]:
    """Draw one token per row of logits [R, V] float32, on any device.

    A row with a logit that is not finite gives `finite=False` and no token. Modifies nothing.
    """
    assert logits.dtype == torch.float32
    assert logits.shape[0] == len(draws)
    assert logits.shape[1] <= MAX_VOCAB
    results: list[RowResult] = []
    randoms = _randoms(draws).to(logits.device)
    for rows in _blocks(logits):
        results += _sample_block(logits[rows], draws[rows], randoms[rows])
    return results


def _blocks(logits: Tensor) -> Iterator[slice]:
    rows, vocab = logits.shape
    size = max(1, _BLOCK // vocab) if logits.device.type == "cpu" else max(1, rows)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _randoms(draws: Sequence[Draw]) -> Tensor:
    """The random number of each row as two halves, [R, 2]; zeros where no row needs one."""
    if all(draw.settings.temperature == 0.0 for draw in draws):
        return torch.zeros(len(draws), 2, dtype=torch.int64)
    seeds = np.array([draw.seed for draw in draws], dtype=np.uint64)
    positions = np.array([draw.position for draw in draws], dtype=np.uint64)
    return torch.from_numpy(uniform62(seeds, positions).T)


def _sample_block(logits: Tensor, draws: Sequence[Draw], randoms: Tensor) -> list[RowResult]:
    finite = (logits * 0.0).sum(dim=1).isfinite().tolist()  # 0 * inf is NaN
    results = [RowResult(finite=False)] * len(draws)
    rows = [row for row, ok in enumerate(finite) if ok]
    if not rows:
        return results
    logits = _take(logits, rows)
    draws = [draws[row] for row in rows]
    tokens = _tokens(_biased(logits, draws), draws, _take(randoms, rows))
    for row, token, logprobs in zip(rows, tokens, _logprobs(logits, draws, tokens), strict=True):
        results[row] = RowResult(token=token, logprobs=logprobs)
    return results


def _take(table: Tensor, rows: Sequence[int]) -> Tensor:
    if len(rows) == table.shape[0]:
        return table
    return table[torch.tensor(rows, device=table.device)]


def _biased(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    entries = [(row, *pair) for row, draw in enumerate(draws) for pair in draw.bias]
    if not entries:
        return logits
    rows, ids, amounts = zip(*entries, strict=True)
    at = (
        torch.tensor(rows, device=logits.device),
        torch.tensor(ids, device=logits.device),
    )
    biased = logits.clone()
    changed = logits[at] - torch.tensor(amounts, dtype=torch.float32, device=logits.device)
    biased[at] = changed.clamp(-_FLOAT_MAX, _FLOAT_MAX)
    return biased


def _tokens(biased: Tensor, draws: Sequence[Draw], randoms: Tensor) -> list[int]:
    tokens = [0] * len(draws)
    greedy = [row for row, draw in enumerate(draws) if draw.settings.temperature == 0.0]
    warm = [row for row, draw in enumerate(draws) if draw.settings.temperature != 0.0]
    if greedy:
        best = _take(biased, greedy).argmax(dim=1)  # documented: the first of equals
        for row, token in zip(greedy, best.tolist(), strict=True):
            tokens[row] = token
    if warm:
        drawn = _drawn(_take(biased, warm), [draws[row] for row in warm], _take(randoms, warm))
        for row, token in zip(warm, drawn.tolist(), strict=True):
            tokens[row] = token
    return tokens


def _drawn(biased: Tensor, draws: Sequence[Draw], randoms: Tensor) -> Tensor:
    scale = [min(1.0 / draw.settings.temperature, 2.0**100) for draw in draws]
    weights = _weights(biased, _column(scale, torch.float32, biased))
    sums = _cut(weights, biased, draws).cumsum(1)
    return _pick(sums, _scaled(sums[:, -1:], randoms))


def _pick(sums: Tensor, goal: Tensor) -> Tensor:
    """The first id whose running sum exceeds the goal [R, 1]; never one of weight zero."""
    return torch.searchsorted(sums, goal, right=True).squeeze(1)


def _column(values: Sequence[float] | Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device).unsqueeze(1)


def _weights(logits: Tensor, scale: Tensor | None) -> Tensor:
    """floor(2^40 exp((logits - max) * scale)) as int64 [R, V]; scale [R, 1], None is one.

    exp(z) = 2^n exp(r), n = round(z / ln 2), r = z - n ln 2, exp(r) a polynomial. Multiplications
    and additions are separate operations on purpose: a fused one rounds once instead of twice.
    """
    z = logits - logits.amax(dim=1, keepdim=True)
    if scale is not None:
        z.mul_(scale)
    z.clamp_(min=-29.0)  # 2^40 exp(-29) < 1
    n = (z * _LOG2_E).round_()
    r = z.sub_(n * _LN2[0]).sub_(n * _LN2[1])
    p = torch.full_like(r, _EXP[0])
    for coefficient in _EXP[1:]:
        p.mul_(r).add_(coefficient)
    return p.mul_(2.0**WEIGHT_BITS).long().bitwise_right_shift_(n.neg_().long())


def _cut(weights: Tensor, biased: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The weights with zeros for the tokens that top_k, top_p and min_p leave out."""
    vocab = weights.shape[1]
    ranked = [
        row
        for row, draw in enumerate(draws)
        if 0 < draw.settings.top_k < vocab or draw.settings.top_p < 1.0
    ]
    if ranked:
        some = [draws[row] for row in ranked]
        cut = _ranked_cut(_take(weights, ranked), _take(biased, ranked), some)
        weights = _put(weights, ranked, cut)
    if any(draw.settings.min_p > 0.0 for draw in draws):
        floor = [math.ceil(Fraction(draw.settings.min_p) * 2**WEIGHT_BITS) for draw in draws]
        weights = weights.masked_fill(weights < _column(floor, torch.int64, weights), 0)
    return weights


def _put(table: Tensor, rows: Sequence[int], values: Tensor) -> Tensor:
    if len(rows) == table.shape[0]:
        return values
    return table.index_copy(0, torch.tensor(rows, device=table.device), values)


def _ranked_cut(weights: Tensor, biased: Tensor, draws: Sequence[Draw]) -> Tensor:
    vocab = weights.shape[1]
    keys = _rank_keys(biased)
    cut, settled = _head_cut(weights, keys, draws, min(vocab, _SHORT_RANKS))
    rest = [row for row, done in enumerate(settled.tolist()) if not done]
    if rest:
        some = [draws[row] for row in rest]
        whole, _ = _head_cut(_take(weights, rest), _take(keys, rest), some, vocab)
        cut = _put(cut, rest, whole)
    return cut


def _rank_keys(logits: Tensor) -> Tensor:
    """int64 [R, V], all different in a row: higher for a higher logit, then for a lower id."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: -0.0 and 0.0 are a tie
    order = bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF))
    vocab = logits.shape[1]
    low = torch.arange(vocab - 1, -1, -1, dtype=torch.int64, device=logits.device)
    return order.long().mul_(2**32).add_(low)


def _highest(keys: Tensor, count: int) -> Tensor:
    """The ids of the highest ranks, best first, [R, count]."""
    vocab = keys.shape[1]
    if keys.device.type == "cpu":  # numpy's selection is several times faster, the keys the same
        part = keys.numpy()
        if count < vocab:
            part = np.partition(part, vocab - count - 1, axis=1)[:, vocab - count :]
        top = torch.from_numpy(np.sort(part, axis=1)).flip(1)
    else:
        top = keys.topk(count, dim=1).values
    return (vocab - 1) - (top & 0xFFFFFFFF)


def _head_cut(
    weights: Tensor, keys: Tensor, draws: Sequence[Draw], ranks: int
) -> tuple[Tensor, Tensor]:
    """Apply top_k and top_p by looking at the first `ranks` ranks only.

    Returns the weights with zeros [R, V] and whether that many ranks were enough [R].
    """
    vocab = weights.shape[1]
    ids = _highest(keys, ranks)
    head = weights.gather(1, ids)
    limits = [min(draw.settings.top_k or vocab, vocab) for draw in draws]
    limit = _column(limits, torch.int64, weights)
    head = head.masked_fill_(torch.arange(ranks, device=weights.device) >= limit, 0)
    sums = head.cumsum(1)
    total = torch.where(limit < vocab, sums[:, -1:], weights.sum(dim=1, keepdim=True))
    share = [max(1, round(draw.settings.top_p * 2**TOP_P_BITS)) for draw in draws]
    need = _share_of(total, _column(share, torch.int64, weights))
    settled = torch.where(limit < vocab, limit <= ranks, sums[:, -1:] >= need)
    head = head.masked_fill(sums - head >= need, 0)
    return torch.zeros_like(weights).scatter_(1, ids, head), settled.squeeze(1)


def _share_of(total: Tensor, share: Tensor) -> Tensor:
    # ceil(total * share / 2^30) in two parts, so that no product leaves 63 bits.
    mask = (1 << TOP_P_BITS) - 1
    low = (total & mask) * share
    return (total >> TOP_P_BITS) * share + ((low + mask) >> TOP_P_BITS)


def _scaled(total: Tensor, randoms: Tensor) -> Tensor:
    """floor(u * total / 2^62), u the row's random number; total [R, 1] below 2^62."""
    u1, u0 = randoms[:, :1], randoms[:, 1:]
    t1, t0 = total >> 31, total & 0x7FFFFFFF
    return u1 * t1 + ((u1 * t0 + u0 * t1 + ((u0 * t0) >> 31)) >> 31)


def _logprobs(
    logits: Tensor, draws: Sequence[Draw], tokens: Sequence[int]
) -> list[Logprobs | None]:
    found: list[Logprobs | None] = [None] * len(draws)
    rows = [row for row, draw in enumerate(draws) if draw.settings.logprobs is not None]
    if not rows:
        return found
    wanted = _take(logits, rows)
    count = max(draws[row].settings.logprobs or 0 for row in rows)
    ids = _highest(_rank_keys(wanted), min(count, wanted.shape[1]))
    chosen = _column([tokens[row] for row in rows], torch.int64, wanted)
    columns = zip(
        rows,
        wanted.amax(dim=1).tolist(),
        _weights(wanted, None).sum(dim=1).tolist(),
        wanted.gather(1, chosen).tolist(),
        ids.tolist(),
        wanted.gather(1, ids).tolist(),
        strict=True,
    )
    for row, high, total, (own,), best, values in columns:
        norm = high + math.log(total / 2**WEIGHT_BITS)
        alternatives = zip(best[: draws[row].settings.logprobs], values, strict=False)
        found[row] = Logprobs(
            chosen=own - norm, top=tuple((token, value - norm) for token, value in alternatives)
        )
    return found
