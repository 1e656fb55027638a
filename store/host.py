"""The host tier: rows of hibernated actors in one fixed slab of host memory.

The slab is cut into frames of exactly one row. A frame is lent, filled from the device in one copy,
sealed with a checksum, and verified whenever it is read. Nothing here outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock

from statevisor.hypervisor.errors import ImageCorrupt, NoFreeSlot
from statevisor.hypervisor.image_ports import Frame
from statevisor.store.digest import checksum as xxh3


@dataclass(slots=True)
class _Held:
    frame: Frame
    index: int
    checksum: Hashable | None = None  # None: lent, not sealed


class HostTier:
    """The HostFrames port, for any thread, since to seal or view a row takes its checksum."""

    def __init__(
        self,
        memory: memoryview,
        row_bytes: int,
        *,
        checksum: Callable[[memoryview], Hashable] = xxh3,
    ) -> None:
        """Cut `memory` into frames; what is left behind the last whole frame is not used."""
        if row_bytes < 1:
            raise ValueError(f"a row of {row_bytes} bytes")
        self._memory = memory.cast("B")
        self._row_bytes = row_bytes
        self._checksum = checksum
        self.capacity = len(self._memory) // row_bytes
        self._free = list(range(self.capacity))[::-1]
        self._held = dict[str, _Held]()  # sealed ones in the order of sealing
        self._lock = Lock()  # of both; never held while a checksum is taken

    @property
    def used(self) -> int:
        """How many frames are lent or sealed."""
        return len(self._held)

    @property
    def capacity_bytes(self) -> int:
        return self.capacity * self._row_bytes

    @property
    def used_bytes(self) -> int:
        return self.used * self._row_bytes

    def get(self, actor_id: str) -> Frame | None:
        """What is held of an actor, lent or sealed."""
        held = self._held.get(actor_id)
        return held.frame if held else None

    def oldest(self) -> tuple[str, ...]:
        """Actors with sealed frames, least recently sealed first."""
        with self._lock:
            return tuple(key for key, held in self._held.items() if held.checksum is not None)

    def view(self, actor_id: str) -> memoryview:
        """The row of a sealed frame, checksum verified; valid until the frame is dropped.

        Raises: KeyError; ImageCorrupt (the frame is dropped then).
        """
        held = self._sealed(actor_id)
        row = self._row(held.index)
        if self._checksum(row) != held.checksum:
            self.drop(actor_id)
            raise ImageCorrupt(f"the row of {actor_id} changed in host memory, frame {held.index}")
        return row

    def peek(self, actor_id: str) -> memoryview:
        """The same row, not verified: nothing made of it may be told before `view` has it.

        Raises: KeyError.
        """
        return self._row(self._sealed(actor_id).index)

    def lend(self, actor_id: str, segment: int, absorbed: int) -> memoryview:
        """A frame to be filled, held for the actor but not yet readable.

        Raises: NoFreeSlot; ValueError if the actor holds a frame.
        """
        frame = Frame(actor_id=actor_id, segment=segment, absorbed=absorbed)
        with self._lock:
            if actor_id in self._held:
                raise ValueError(f"{actor_id} holds a frame already")
            if not self._free:
                raise NoFreeSlot(f"all {self.capacity} frames of the host tier are held")
            held = self._held[actor_id] = _Held(frame, self._free.pop())
        return self._row(held.index)

    def seal(self, actor_id: str) -> None:
        """The lent frame is filled: take its checksum; from now on it is readable.

        Raises: KeyError; ValueError if it is sealed already.
        """
        held = self._held[actor_id]
        if held.checksum is not None:
            raise ValueError(f"the frame of {actor_id} is sealed already")
        checksum = self._checksum(self._row(held.index))
        with self._lock:
            self._held[actor_id] = self._held.pop(actor_id)  # to the end: the youngest
            held.checksum = checksum

    def drop(self, actor_id: str) -> None:
        """Free an actor's frame, lent or sealed. Raises: KeyError."""
        with self._lock:
            self._free.append(self._held.pop(actor_id).index)

    def check(self) -> None:
        """Raise AssertionError unless every frame is either free or held, once."""
        seen = sorted([*self._free, *(held.index for held in self._held.values())])
        assert seen == list(range(self.capacity)), seen

    def _sealed(self, actor_id: str) -> _Held:
        held = self._held[actor_id]
        if held.checksum is None:
            raise KeyError(f"the frame of {actor_id} is not filled yet")
        return held

    def _row(self, index: int) -> memoryview:
        return self._memory[index * self._row_bytes : (index + 1) * self._row_bytes]
