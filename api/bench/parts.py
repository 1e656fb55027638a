"""What a move spends its time on: when each part of it begins, and how long it takes.

Parts run beside one another, so they do not add up to the whole.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from statistics import median
from typing import Any

#: Part, and its beginning and end in seconds.
_Span = tuple[str, float, float]


class Parts:
    """Watches methods of chosen objects while an action is timed."""

    def __init__(self) -> None:
        self._runs: dict[str, list[dict[str, tuple[float, float]]]] = {}
        self._spans: list[_Span] | None = None

    def watch(self, thing: object, **parts: str) -> None:
        """Time methods of an object, under the names of the parts they are."""
        for method, part in parts.items():
            setattr(thing, method, self._timed(getattr(thing, method), part))

    async def time(self, action: str, act: Callable[[], Awaitable[object]]) -> None:
        """Do an action once and keep what its parts took."""
        self._spans = spans = []
        began = time.perf_counter()
        await act()
        spans.append(("whole", began, time.perf_counter()))
        self._spans = None
        run: dict[str, tuple[float, float]] = {}
        for part, start, stop in sorted(spans, key=lambda span: span[1]):
            at, took = run.get(part, (start - began, 0.0))
            run[part] = (at, took + stop - start)
        self._runs.setdefault(action, []).append(run)

    def report(self) -> dict[str, dict[str, dict[str, float]]]:
        """By action and part the medians, in ms: `at` from the beginning, `ms` in all."""
        return {action: _medians(runs) for action, runs in self._runs.items()}

    def _timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        if iscoroutinefunction(call):

            @wraps(call)
            async def later(*args: Any, **kwargs: Any) -> Any:
                with self._span(part):
                    return await call(*args, **kwargs)

            return later

        @wraps(call)
        def at_once(*args: Any, **kwargs: Any) -> Any:
            with self._span(part):
                return call(*args, **kwargs)

        return at_once

    @contextmanager
    def _span(self, part: str) -> Iterator[None]:
        spans, began = self._spans, time.perf_counter()
        try:
            yield
        finally:
            if spans is not None:
                spans.append((part, began, time.perf_counter()))


def _medians(runs: list[dict[str, tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Of the parts that most runs had, in the order in which they begin."""
    parts = {part for run in runs for part in run}
    found = {
        part: [run[part] for run in runs if part in run]
        for part in parts
        if 2 * sum(part in run for run in runs) > len(runs)
    }
    spans = {
        part: {
            "at": round(median(at for at, _ in times) * 1e3, 2),
            "ms": round(median(took for _, took in times) * 1e3, 2),
        }
        for part, times in found.items()
    }
    return dict(sorted(spans.items(), key=lambda item: item[1]["at"]))
