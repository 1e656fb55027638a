"""What a step on the device wrote, as the results of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from statevisor.guests.sampling import WEIGHT_BITS
from statevisor.hypervisor.plan import Logprobs, RowResult
from statevisor.hypervisor.sampling import Draw

#: Columns of a row's details: order of the highest logit, sum of weights, order of the token's own
#: logit; behind them the highest ranks as keys (order * 2^32 + 2^31 - 1 - id).
HIGH, TOTAL, OWN, RANKS = range(4)
#: Most ranks of one row.
MOST_RANKS = 20
DETAILS = RANKS + MOST_RANKS

#: State of a row that was not run.
PASSED_OVER = 2

_PASSED_OVER = RowResult(ran=False)
_DONE = RowResult()
_NOT_FINITE = RowResult(finite=False)


def read_results(
    results: NDArray[np.int64],
    details: NDArray[np.int64] | None,
    draws: Sequence[Draw | None],
    tokens: dict[int, RowResult] | None = None,
) -> list[RowResult]:
    """Results of a plan's rows; results [R, 2] of `draw_kernel`, details of `describe_kernel`.

    details: None where no row wants log probabilities. tokens: results that are a token and
    nothing else, to be used again since they are most of all; grows.
    """
    known = {} if tokens is None else tokens
    found = []
    for at, ((token, state), draw) in enumerate(zip(results.tolist(), draws, strict=True)):
        if state == PASSED_OVER:
            found.append(_PASSED_OVER)
        elif not state:
            found.append(_NOT_FINITE)
        elif draw is None:
            found.append(_DONE)
        elif details is None or draw.settings.logprobs is None:
            found.append(known.get(token) or known.setdefault(token, RowResult(token=token)))
        else:
            logprobs = _logprobs(details[at], draw.settings.logprobs)
            found.append(RowResult(token=token, logprobs=logprobs))
    return found


def _logprobs(details: NDArray[np.int64], count: int) -> Logprobs:
    keys = details[RANKS : RANKS + count]
    keys = keys[keys != _UNUSED]
    high, own = _logits(details[[HIGH, OWN]]).tolist()
    norm = high + math.log(int(details[TOTAL]) / 2**WEIGHT_BITS)
    ids = (0x7FFFFFFF - (keys & 0x7FFFFFFF)).tolist()
    values = _logits(keys >> 32).tolist()
    return Logprobs(
        chosen=own - norm,
        top=tuple((token, value - norm) for token, value in zip(ids, values, strict=True)),
    )


#: No key of a rank: the id would be past every vocabulary.
_UNUSED = np.int64(-(1 << 63))


def _logits(orders: NDArray[np.int64]) -> NDArray[np.float32]:
    small = orders.astype(np.int32)
    return (small ^ ((small >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
