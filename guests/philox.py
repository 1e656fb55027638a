"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), and normals made of it.

A number depends on its key and counter alone, never on what was drawn before. Integer arithmetic
and correctly rounded operations only, so the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Third counter word, so that no two uses share numbers.
TOKEN_DRAW = 0
STATE_NOISE = 1

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(
    counter: NDArray[np.uint64], key: tuple[NDArray[np.uint64], NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """Ten rounds over counter [4, N] under key words of [N] or []; four 32-bit words [4, N]."""
    c0, c1, c2, c3 = counter
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    for round_ in range(10):
        if round_:
            k0 = (k0 + np.uint64(_WEYL[0])) & _LOW
            k1 = (k1 + np.uint64(_WEYL[1])) & _LOW
        even = c0 * _MULTIPLIERS[0]
        odd = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (odd >> _WORD) ^ c1 ^ k0,
            odd & _LOW,
            (even >> _WORD) ^ c3 ^ k1,
            even & _LOW,
        )
    return np.stack([c0, c1, c2, c3])


def uniform62(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.int64]:
    """One number of 62 bits per (seed, position), as two 31-bit halves [2, N], high half first."""
    words = philox4x32(_counter(positions, TOKEN_DRAW), (seeds & _LOW, seeds >> _WORD))
    return (words[:2] >> np.uint64(1)).astype(np.int64)


def normal(seed: int, start: int, stop: int) -> NDArray[np.float64]:
    """Standard normals number start..stop of a seed's sequence, [stop - start]."""
    first, last = start // 4, -(-stop // 4)
    seeds = np.uint64(seed)
    blocks = np.arange(first, last, dtype=np.uint64)
    words = philox4x32(_counter(blocks, STATE_NOISE), (seeds & _LOW, seeds >> _WORD))
    flat = words.T.reshape(-1)[start - 4 * first : stop - 4 * first]
    return _normal_quantile((flat.astype(np.float64) + 0.5) * 2.0**-32)


def _counter(number: NDArray[np.uint64], use: int) -> NDArray[np.uint64]:
    fixed = np.full_like(number, use), np.zeros_like(number)
    return np.stack([number & _LOW, number >> _WORD, *fixed])


def _horner(x: NDArray[np.float64], coefficients: tuple[float, ...]) -> NDArray[np.float64]:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    # The C library's logarithm differs from one library to the next; this series does not.
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner(ratio * ratio, tuple(1.0 / n for n in range(23, 0, -2)))
    return 2.0 * ratio * series + (exponent - small) * 0.6931471805599453


# Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988). The far tail of the algorithm
# begins below exp(-25), which no number of 32 bits reaches.
_MIDDLE = (
    (
        2.50908_09287_30122_6727e3,
        3.34305_75583_58812_8105e4,
        6.72657_70927_00870_0853e4,
        4.59219_53931_54987_1457e4,
        1.37316_93765_50946_1125e4,
        1.97159_09503_06551_4427e3,
        1.33141_66789_17843_7745e2,
        3.38713_28727_96366_6080,
    ),
    (
        5.22649_52788_52854_5610e3,
        2.87290_85735_72194_2674e4,
        3.93078_95800_09271_0610e4,
        2.12137_94301_58659_5867e4,
        5.39419_60214_24751_1077e3,
        6.87187_00749_20579_0830e2,
        4.23133_30701_60091_1252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545_01427_83414_07640e-4,
        2.27238_44989_26918_45833e-2,
        2.41780_72517_74506_11770e-1,
        1.27045_82524_52368_38258,
        3.64784_83247_63204_60504,
        5.76949_72214_60691_40550,
        4.63033_78461_56545_29590,
        1.42343_71107_49683_57734,
    ),
    (
        1.05075_00716_44416_84324e-9,
        5.47593_80849_95344_94600e-4,
        1.51986_66563_61645_71966e-2,
        1.48103_97642_74800_74590e-1,
        6.89767_33498_51000_04550e-1,
        1.67638_48301_83803_84940,
        2.05319_16266_37758_82187,
        1.0,
    ),
)


def _normal_quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = p - 0.5
    square = 0.180625 - centred * centred
    middle = centred * _horner(square, _MIDDLE[0]) / _horner(square, _MIDDLE[1])
    depth = np.sqrt(-_log(np.minimum(p, 1.0 - p))) - 1.6
    tail = _horner(depth, _TAIL[0]) / _horner(depth, _TAIL[1])
    return np.where(np.abs(centred) <= 0.425, middle, np.copysign(tail, centred))
