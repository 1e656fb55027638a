"""Rows of a plan as one table of integers, the static input of a step on the device.

One row of the table is one row of the plan; a kernel reads its columns. Whatever a row's settings
are, the same kernels run on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from statevisor.guests.sampling import TOP_P_BITS, WEIGHT_BITS
from statevisor.hypervisor.plan import MOST_STOPS, Row
from statevisor.hypervisor.sampling import Draw, SamplerSettings

#: Columns. TOKEN: the row's only token, DRAWN, or -2 where the batch has it already. LAST: position
#: of a draw that is not to be followed, nor any behind it.
FLAGS, SEED, POSITION, SCALE, LIMIT, SHARE, FLOOR, BEST, BIAS, BIAS_END, SLOT, TOKEN, LAST = range(
    13
)
STOPS = 13  #: and the columns behind it: ids that are not to be followed, -1 for none
WIDTH = STOPS + MOST_STOPS
#: Bit of FLAGS: a token is to be drawn.
DRAWS = 1
#: In the column TOKEN.
GIVEN = -2
_NEVER = 1 << 62  #: no position


def fill(table: NDArray[np.int64], rows: Sequence[Row]) -> None:
    """Write the columns of a plan's rows into the head of `table` [>= R, WIDTH]."""
    head = table[: len(rows)]
    known: dict[tuple[int, frozenset[int]], NDArray[np.int64]] = {}
    for at, row in enumerate(rows):
        draw = row.draw
        if draw is None:
            head[at] = QUIET
            continue
        # by identity: a turn hands the same settings to every step
        key = (id(draw.settings), row.stops)
        if key not in known:
            known[key] = _of_settings(draw.settings, row.stops)
        head[at] = known[key]
    head[:, SLOT] = [row.slot for row in rows]
    head[:, TOKEN] = [row.tokens[0] if len(row.tokens) == 1 else GIVEN for row in rows]
    head[:, SEED] = [0 if row.draw is None else row.draw.seed for row in rows]
    head[:, POSITION] = [0 if row.draw is None else row.draw.position for row in rows]
    head[:, LAST] = [_NEVER if row.last is None else row.last for row in rows]


def entries(table: NDArray[np.int64], draws: Mapping[int, Draw]) -> tuple[list[int], list[float]]:
    """Ids and amounts of all biases of the draws of these rows, and in the columns BIAS and
    BIAS_END whose they are."""
    ids: list[int] = []
    amounts: list[float] = []
    for at, draw in draws.items():
        table[at, BIAS] = len(ids)
        ids += [token for token, _ in draw.bias]
        amounts += [amount for _, amount in draw.bias]
        table[at, BIAS_END] = len(ids)
    return ids, amounts


def _of_settings(settings: SamplerSettings, stops: frozenset[int]) -> NDArray[np.int64]:
    row = QUIET.copy()
    row[FLAGS] = DRAWS
    if settings.temperature != 0.0:
        scale = np.float32(min(1.0 / settings.temperature, 2.0**100))
        row[SCALE] = scale.view(np.int32)
    row[LIMIT] = settings.top_k
    row[SHARE] = max(1, round(settings.top_p * 2**TOP_P_BITS))
    row[FLOOR] = math.ceil(Fraction(settings.min_p) * 2**WEIGHT_BITS)
    row[BEST] = -1 if settings.logprobs is None else settings.logprobs
    row[STOPS : STOPS + len(stops)] = sorted(stops)
    return row


def _quiet() -> NDArray[np.int64]:
    row = np.zeros(WIDTH, dtype=np.int64)
    row[BEST] = -1
    row[STOPS:] = -1
    return row


#: The columns of a row that feeds token 0 to slot 0 and draws nothing: a padding row.
QUIET = _quiet()
