"""What `DRAWN` stands for, for guests that run a step at once: the last drawn tokens by slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from statevisor.hypervisor.plan import Row, RowResult, StepPlan

_PASSED_OVER = RowResult(ran=False)


class LastDrawn:
    """Runs plans with rows that follow on a step that knows none."""

    def __init__(self) -> None:
        self._drawn: dict[int, int] = {}  #: slot -> the token that may be followed

    def run(
        self, plan: StepPlan, step: Callable[[StepPlan], Sequence[RowResult]]
    ) -> tuple[tuple[RowResult, ...], ...]:
        """Each time put in what follows, leave out what has nothing to follow, run the rest.

        Raises: what the step raises; then nothing can be followed.
        """
        return tuple(self._once(single, step) for single in plan.resolved())

    def _once(
        self, plan: StepPlan, step: Callable[[StepPlan], Sequence[RowResult]]
    ) -> tuple[RowResult, ...]:
        last, self._drawn = self._drawn, {}
        rows = [_resolved(row, last.get(row.slot)) for row in plan.rows]
        running = [row for row in rows if row is not None]
        results = iter(step(StepPlan(rows=tuple(running))) if running or not rows else ())
        return tuple(
            _PASSED_OVER if row is None else self._note(row, next(results)) for row in rows
        )

    def _note(self, row: Row, result: RowResult) -> RowResult:
        if result.finite and result.token is not None and not _ends(row, result.token):
            self._drawn[row.slot] = result.token
        return result


def _ends(row: Row, token: int) -> bool:
    assert row.draw is not None, "it has drawn"
    return token in row.stops or (row.last is not None and row.draw.position >= row.last)


def _resolved(row: Row, token: int | None) -> Row | None:
    if not row.follows:
        return row
    return None if token is None else replace(row, tokens=(token,))
