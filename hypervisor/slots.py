"""Which rows of the bank are free: exact admission by counting.

Slot 0 is the padding row of every batch and holds no actor. A freed slot is given out again last,
so that a fault that outlives its owner shows up late and in one place rather than at once in
another actor.
"""

from __future__ import annotations

from collections import deque

from statevisor.hypervisor.errors import NoFreeSlot


class SlotTable:
    """Slots 1..capacity and who holds them."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a bank needs at least one slot, not {capacity}")
        self.capacity = capacity
        self._free: deque[int] = deque(range(1, capacity + 1))
        self._owner: dict[int, str] = {}

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def owner(self, slot: int) -> str | None:
        """Who holds a slot."""
        return self._owner.get(slot)

    def take(self, owner: str) -> int:
        """Give a free slot to `owner`. Raises: NoFreeSlot."""
        if not self._free:
            raise NoFreeSlot
        slot = self._free.popleft()
        self._owner[slot] = owner
        return slot

    def give(self, slot: int, owner: str) -> None:
        """Free a slot that `owner` holds. Raises: ValueError on a double free or a foreign slot."""
        holder = self._owner.get(slot)
        if holder != owner:
            raise ValueError(f"slot {slot} is held by {holder!r}, not by {owner!r}")
        del self._owner[slot]
        self._free.append(slot)

    def check(self) -> None:
        """Raise AssertionError unless every slot is either free or owned, once."""
        seen = sorted([*self._free, *self._owner])
        assert seen == list(range(1, self.capacity + 1)), seen
