"""Every step of a run as a meter is told of it, and the steps of a span of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from statevisor.api.bench.report import quantiles

#: Longer than any step of any guest: whoever waits for one so long waits for ever.
_PATIENCE_S = 300.0
#: Begin and end, of the performance counter.
Span = tuple[float, float]


class Step(NamedTuple):
    """One step; those that were given at once have the same end and each its share of the time."""

    end: float  #: of the performance counter
    rows: int
    seconds: float


class StepLog:
    """A Meter that keeps every step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._last = 0.0
        self._rows = self._left = 0
        self._passed = asyncio.Event()

    def observe(self, name: str, value: float, **labels: str) -> None:
        if name == "step_seconds":
            self._last = value
        elif name == "step_rows":
            self._keep(int(value))

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        pass

    def _keep(self, rows: int) -> None:
        end = time.perf_counter()
        if self.steps and self.steps[-1][1:] == (rows, self._last):
            end = self.steps[-1].end  # given at once with the one before
        self.steps.append(Step(end, rows, self._last))
        if rows == self._rows:
            self._left -= 1
            if not self._left:
                self._passed.set()

    async def passed(self, count: int, *, rows: int) -> Sequence[Step]:
        """Wait for so many more steps of so many rows, and return them. Raises: TimeoutError."""
        mark = len(self.steps)
        self._rows, self._left = rows, count
        self._passed.clear()
        async with asyncio.timeout(_PATIENCE_S):
            await self._passed.wait()
        return [step for step in self.steps[mark:] if step.rows == rows]

    def within(self, *spans: Span) -> list[Step]:
        """Steps that ran at any moment of any of the spans, so far as they are back."""
        return [
            step
            for step in self.steps
            if any(step.end > begin and step.end - step.seconds < end for begin, end in spans)
        ]

    def first(self, mark: int, *, rows: int) -> Step | None:
        """The first step of so many rows behind the first `mark` steps."""
        return next((step for step in self.steps[mark:] if step.rows == rows), None)


def milliseconds(steps: Iterable[Step]) -> list[float]:
    """Of each step."""
    return [step.seconds * 1e3 for step in steps]


def pauses(steps: Iterable[Step]) -> list[float]:
    """Milliseconds between results: steps that were given at once are one pause."""
    spans = groupby(steps, key=lambda step: step.end)
    return [sum(step.seconds for step in span) * 1e3 for _, span in spans]


def figures_of(steps: Sequence[Step]) -> dict[str, Any]:
    """What a caller who reads tokens sees of these steps; there is at least one."""
    return {"step_ms": quantiles(milliseconds(steps)), "pause_ms": quantiles(pauses(steps))}
