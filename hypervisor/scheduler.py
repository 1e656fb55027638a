"""Which tokens go into the next step. Pure: numbers in, a frozen plan out.

There are no phases. An actor has a gap: tokens known minus tokens absorbed. Decoding is a gap of
one, prefill and replay are larger gaps, and all of them share one token budget per step. Decode
rows come first, so that a long prompt never stops them; what is left goes to the larger gaps in
equal shares, and who comes first turns from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statevisor.hypervisor.plan import Row, StepPlan
from statevisor.hypervisor.sampling import Draw


@dataclass(frozen=True, slots=True)
class Work:
    """What one actor wants of the next step."""

    slot: int
    gap: Sequence[int]  #: the next tokens to absorb, at least one; may be cut at the budget
    closes: bool  #: whether `gap` reaches the end of what is known
    draw: Draw | None  #: drawn only in the step that closes the gap
    stops: frozenset[int] = frozenset()  #: drawn ids that no row of a next step may follow
    last: int | None = None  #: position of the last draw that there may be


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the works its rows came from."""

    plan: StepPlan
    works: tuple[int, ...]


def plan(works: Sequence[Work], budget: int, turn: int) -> Planned:
    """Share `budget` tokens among the works; `turn` is a step counter that rotates who is first."""
    shares = [0] * len(works)
    left = budget
    order = [(turn + i) % len(works) for i in range(len(works))] if works else []
    for index in order:
        if len(works[index].gap) == 1 and left:
            shares[index] = 1
            left -= 1
    wide = [index for index in order if len(works[index].gap) > 1]
    while wide and left:
        share = max(1, left // len(wide))
        still: list[int] = []
        for index in wide:
            more = min(share, len(works[index].gap) - shares[index], left)
            shares[index] += more
            left -= more
            if shares[index] < len(works[index].gap):
                still.append(index)
        wide = still
    chosen = tuple(index for index in range(len(works)) if shares[index])
    rows = tuple(_row(works[index], shares[index]) for index in chosen)
    return Planned(StepPlan(rows=rows), chosen)


def _row(work: Work, share: int) -> Row:
    if share == len(work.gap) and work.closes:
        return Row(
            slot=work.slot,
            tokens=tuple(work.gap),
            draw=work.draw,
            stops=work.stops,
            last=work.last,
        )
    return Row(slot=work.slot, tokens=tuple(work.gap[:share]))


def repeated(planned: Planned, times: int) -> Planned:
    """The steps after one whose rows all go on as they are, each draw one position further."""
    last = planned.plan
    plan = StepPlan(rows=last.rows, offset=last.offset + last.times, times=times)
    return Planned(plan, planned.works)
