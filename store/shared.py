"""Work that another thread may do beforehand, and else is done by who needs it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One call, made once by whoever comes first. Nobody waits for a thread to be free."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._one = Lock()  # held by who does it
        self._results: list[T] = []

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return bool(self._results)

    def __call__(self) -> T:
        """The result; raises what the work does, for each who asks."""
        with self._one:
            if not self._results:
                self._results.append(self._work())
            return self._results[0]
