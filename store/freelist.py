"""Which bytes of one slab are free: first fit, neighbours joined, nothing given out twice."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from statevisor.hypervisor.errors import StatevisorError


class FreeList:
    """Disjoint free and used ranges that together cover 0..size."""

    def __init__(self, size: int, used: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with these (offset, length) used. Raises: StatevisorError if they overlap."""
        self.size = size
        self.used_bytes = 0
        self._used = dict[int, int]()  # offset -> length
        self._starts: list[int] = []  # of the free ranges, ascending
        self._free = dict[int, int]()
        self._largest: int | None = 0  # None: to be found anew
        at = 0
        for offset, length in sorted(used):
            if offset < at or length <= 0 or offset + length > size:
                raise StatevisorError(
                    f"extent {offset}+{length} overlaps another or leaves its slab of {size} bytes"
                )
            self._add_free(at, offset - at)
            self._used[offset] = length
            self.used_bytes += length
            at = offset + length
        self._add_free(at, size - at)

    @property
    def largest(self) -> int:
        """Bytes of the largest free range."""
        if self._largest is None:
            self._largest = max(self._free.values(), default=0)
        return self._largest

    @property
    def tail(self) -> int:
        """Bytes of the free range that ends the slab."""
        if not self._starts:
            return 0
        last = self._starts[-1]
        return self._free[last] if last + self._free[last] == self.size else 0

    @property
    def empty(self) -> bool:
        """Whether nothing is used."""
        return not self._used

    def take(self, length: int) -> int | None:
        """Use the first free range that is long enough; its offset, or None."""
        for start in self._starts:
            room = self._free[start]
            if room >= length:
                self._remove_free(start)
                self._used[start] = length
                self.used_bytes += length
                self._add_free(start + length, room - length)
                return start
        return None

    def give(self, offset: int, length: int) -> None:
        """Free a used range. Raises: StatevisorError if exactly this range is not used."""
        if self._used.get(offset) != length:
            raise StatevisorError(f"extent {offset}+{length} is not in use: freed twice?")
        del self._used[offset]
        self.used_bytes -= length
        at = bisect_left(self._starts, offset)
        if at < len(self._starts) and self._starts[at] == offset + length:
            length += self._remove_free(offset + length)
        if at and self._starts[at - 1] + self._free[self._starts[at - 1]] == offset:
            before = self._starts[at - 1]
            length += self._remove_free(before)
            offset = before
        self._add_free(offset, length)

    def extend(self, size: int) -> None:
        """Let the slab end at `size`; the new bytes are free."""
        added, tail = size - self.size, self.tail
        if tail:
            self._remove_free(self.size - tail)
        self._add_free(self.size - tail, tail + added)
        self.size = size

    def uses(self, offset: int, length: int) -> bool:
        """Whether exactly this range is in use."""
        return self._used.get(offset) == length

    def ranges(self) -> list[tuple[int, int]]:
        """Offset and length of every used range."""
        return list(self._used.items())

    def check(self) -> None:
        """Raise AssertionError unless used and free ranges cover the slab, each byte once."""
        assert self._starts == sorted(self._free), "the order of the free ranges is lost"
        assert self.largest == max(self._free.values(), default=0), "the largest is another"
        at, was_free = 0, False
        for start, length, free in sorted(
            [(o, n, False) for o, n in self._used.items()]
            + [(o, n, True) for o, n in self._free.items()]
        ):
            assert start == at, f"byte {at} is {'lost' if start > at else 'held twice'}"
            assert length > 0, f"an empty range at {start}"
            assert not (free and was_free), f"free neighbours at {start} are not joined"
            at, was_free = start + length, free
        assert self.used_bytes == sum(self._used.values()), "the count of used bytes is off"
        assert at == self.size, f"ranges end at {at}, the slab at {self.size}"

    def _add_free(self, start: int, length: int) -> None:
        if length:
            insort(self._starts, start)
            self._free[start] = length
            if self._largest is not None and length > self._largest:
                self._largest = length

    def _remove_free(self, start: int) -> int:
        del self._starts[bisect_left(self._starts, start)]
        length = self._free.pop(start)
        if length == self._largest:
            self._largest = None
        return length
