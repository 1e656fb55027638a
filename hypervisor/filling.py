"""A row in host memory that one thread fills while others use what is there already."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Final

#: A row is handed on in parts: large enough for a disk's full speed, small enough to begin early.
PART_BYTES: Final = 2 << 20

#: Waits until at least so many bytes of a row are there, and returns how many are.
Filled = Callable[[int], int]
#: Is told how many bytes of a row are there, on any one thread at a time; 0: none any more.
Reached = Callable[[int], object]


class Filling:
    """How far a row is filled. For any thread."""

    def __init__(self) -> None:
        self._news = Condition()
        self._there = 0
        self._failure: BaseException | None = None

    def fill(
        self, save: Callable[[int, memoryview, int], None], slot: int, row: memoryview
    ) -> None:
        """Copy a slot into the row, part by part. Slow. Raises what `save` does."""
        try:
            for start in range(0, len(row), PART_BYTES):
                part = row[start : start + PART_BYTES]
                save(slot, part, start)
                self.reach(start + len(part))
        except BaseException as error:
            self.fail(error)
            raise

    def reach(self, nbytes: int) -> None:
        """So many bytes are there now, and will not change."""
        with self._news:
            self._there = nbytes
            self._news.notify_all()

    def fail(self, failure: BaseException) -> None:
        """No more will come; who waits for more is told why."""
        with self._news:
            self._failure = failure
            self._news.notify_all()

    def wait(self, nbytes: int) -> int:
        """How many bytes are there, once it is that many. Slow. Raises what `fail` was given."""
        with self._news:
            while self._there < nbytes:
                if self._failure is not None:
                    raise self._failure
                self._news.wait()
            return self._there
