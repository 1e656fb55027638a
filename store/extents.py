"""Where very many images lie, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from statevisor.hypervisor.image_ports import Extent


class Extents:
    """Extents by slab: two numbers each instead of an object."""

    def __init__(self) -> None:
        self._slabs: dict[int, array[int]] = {}

    def add(self, slab: int, offset: int, length: int) -> None:
        """One more."""
        self._slabs.setdefault(slab, array("q")).extend((offset, length))

    @property
    def slabs(self) -> frozenset[int]:
        """Every slab that has some."""
        return frozenset(self._slabs)

    def of(self, slab: int) -> Iterator[tuple[int, int]]:
        """Offset and length of each in one slab."""
        numbers = self._slabs.get(slab, array("q"))
        return zip(numbers[::2], numbers[1::2], strict=True)

    def __iter__(self) -> Iterator[Extent]:
        for slab in self._slabs:
            for offset, length in self.of(slab):
                yield Extent(slab, offset, length)
