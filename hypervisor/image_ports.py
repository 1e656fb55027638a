"""Where state bytes are kept, as Protocols: slabs, host frames and whole backups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from statevisor.hypervisor.filling import Filled, Reached
from statevisor.hypervisor.layout import Fingerprints, Layout
from statevisor.hypervisor.records import (
    ImageRef,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMeta:
    """What an image says of itself beside the tensors; it depends on the state alone."""

    layout: Layout
    fingerprints: Fingerprints
    position: int  #: length of the transcript it stands for
    absorbed: int  #: tokens the tensors have taken in
    pending: tuple[int, ...]  #: the tokens absorbed..position


class Extent(NamedTuple):
    """Where an image lies."""

    slab: int
    offset: int
    length: int


class Images(Protocol):
    """Durable images in slab files."""

    async def put(self, row: memoryview, meta: ImageMeta, filled: Filled | None = None) -> ImageRef:
        """Write one image; when it returns the bytes are durable and unnamed.

        `filled`: the row is still being filled by another thread, and this waits for its bytes.
        The same state gives the same digest; whether an image of that digest is stored already is
        the caller's to ask. Raises: OSError never: a failed fsync stops the process.
        """
        ...

    async def get(
        self, ref: ImageRef, out: memoryview, reached: Reached | None = None
    ) -> ImageMeta:
        """Read the row into `out`, every bit checked. Raises: ImageCorrupt, IncompatibleImage.

        `reached` may be told how many bytes of it are there, before they are checked.
        """
        ...

    def digest(self, row: memoryview, meta: ImageMeta) -> str:
        """The digest that `put` of this state would give; writes nothing, safe on any thread."""
        ...

    async def export(self, ref: ImageRef) -> bytes:
        """The image as one safetensors file, digest checked. Raises: ImageCorrupt."""
        ...

    def decode(self, file: bytes, out: memoryview, expect: Fingerprints) -> ImageMeta:
        """Check an exported file and copy its row. Raises: ImageCorrupt, IncompatibleImage."""
        ...

    async def verify(self, ref: ImageRef) -> ImageMeta:
        """Read an image and check every bit of it. Raises: ImageCorrupt, IncompatibleImage."""
        ...

    def extents(self) -> frozenset[Extent]:
        """Everything that is in use, images being written included."""
        ...

    def birth(self, extent: Extent) -> int:
        """A number of what lies there, that nothing written there later has."""
        ...

    def reclaim(self, extent: Extent) -> None:
        """Give back an extent that no row names and nobody will name. Raises: StatevisorError."""
        ...

    def fits(self, row_bytes: int) -> bool:
        """Whether an image of such a row can be written within the budget and the disk.

        Others may be quicker: `put` has the last word.
        """
        ...

    def free(self, ref: ImageRef) -> None:
        """Give the extent back; call it after the commit that removed the last row naming it."""
        ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def capacity_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One row in host memory."""

    actor_id: str
    segment: int
    absorbed: int  #: tokens the row has taken in


class HostFrames(Protocol):
    """The host tier: rows of hibernated actors in a fixed slab; lost with the process.

    For any thread: `seal` and `view` take a checksum of the whole row.
    """

    @property
    def capacity(self) -> int:
        """How many rows fit."""
        ...

    @property
    def used(self) -> int: ...

    def get(self, actor_id: str) -> Frame | None:
        """What is held of an actor."""
        ...

    def lend(self, actor_id: str, segment: int, absorbed: int) -> memoryview:
        """A frame to be filled, held for the actor but not yet readable.

        Raises: NoFreeSlot, ValueError.
        """
        ...

    def seal(self, actor_id: str) -> None:
        """The lent frame is filled: take its checksum; from now on it is readable."""
        ...

    def view(self, actor_id: str) -> memoryview:
        """The row of a sealed frame, checksum verified.

        Raises: KeyError; ImageCorrupt (the frame is dropped then).
        """
        ...

    def peek(self, actor_id: str) -> memoryview:
        """The same row, not verified: nothing made of it may be told before `view` has it.

        Raises: KeyError.
        """
        ...

    def drop(self, actor_id: str) -> None:
        """Free an actor's frame, lent or sealed. Raises: KeyError."""
        ...

    def oldest(self) -> tuple[str, ...]:
        """Actors with sealed frames, least recently sealed first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A finished backup."""

    target: str
    images: int
    nbytes: int  #: of the whole backup


class Archive(Protocol):
    """Copies of the whole data folder."""

    async def write(self, target: str) -> Archived:
        """Copy everything that is committed, while others work; no image may be freed meanwhile.

        `target` is a new folder, or a new file if it ends in .tar; it appears when it is complete.
        Raises: Conflict (it exists), ImageCorrupt, Unavailable (the disk fails), InvalidRequest.
        """
        ...
