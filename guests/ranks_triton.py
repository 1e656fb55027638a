"""Ranks and weights of logits in a draw, as functions of Triton kernels.

The arithmetic is that of `guests/sampling.py`: ranks are in the order of (logit descending, id
ascending), weights are integers, and every operation of a weight rounds once.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: z below this has weight zero.
_LOWEST = tl.constexpr(-29.0)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, half to even


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
def amount_of(z, by_count):
    """What a token adds: one, or its weight."""
    return tl.where(by_count, (z * 0.0).to(tl.int64) + 1, weight_of(z))


@triton.jit
def weight_of_order(order, high, scale, by_count):
    weight = weight_of(exponent(logit_of(order.to(tl.int32)), high, scale))
    return tl.where(by_count, weight * 0 + 1, tl.maximum(weight, 1))


@triton.jit
def is_kept(order, ids, cut_order, cut_id):
    """Whether ranks are at or before the cut."""
    return (order > cut_order) | ((order == cut_order) & (ids <= cut_id))
