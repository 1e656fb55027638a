"""Slab files: where extents lie, which room is free, when a file grows and when it goes.

A slab is a file of up to `slab_bytes` that is zero-written in steps before it is used: rewriting
blocks that were written is several times faster than a new file or room from fallocate. An image
larger than a slab gets a file of its own. What is free is not stored anywhere: it follows from the
extents that the catalog names.

Bookkeeping is not locked: it belongs to one thread. `perform` and `remove` do the slow part and
may run on another.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statevisor.hypervisor.errors import QuotaExceeded, StatevisorError, Unavailable
from statevisor.hypervisor.image_ports import Extent
from statevisor.hypervisor.records import ImageRef
from statevisor.store.codec import ALIGN
from statevisor.store.extents import Extents
from statevisor.store.files import Files
from statevisor.store.freelist import FreeList

_NAME: Final = re.compile(r"(\d{8,})\.slab\Z")
_ZEROS: Final = bytes(1 << 20)
#: Why a file cannot be opened that is none the worse for it.
_NOT_NOW: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabConfig:
    """Sizes of the image store, in bytes; multiples of 4 KiB."""

    slab_bytes: int = 64 << 20
    step_bytes: int = 8 << 20  #: zero-written at a time, and kept free ahead of need
    limit_bytes: int | None = None  #: most bytes of all slab files; None: what the disk has
    threads: int = 4  #: workers that write, hash and read

    def __post_init__(self) -> None:
        if self.slab_bytes % ALIGN or self.step_bytes % ALIGN:
            raise ValueError(f"slab and step must be multiples of {ALIGN} bytes")
        if not 0 < self.step_bytes <= self.slab_bytes or self.threads < 1:
            raise ValueError(f"a step of {self.step_bytes} bytes, {self.threads} threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an extent lies."""

    slab: int
    offset: int
    length: int


@dataclass(slots=True)
class Slab:
    """One slab file, open."""

    id: int
    path: Path
    fd: int
    room: FreeList
    direct: int | None = None  #: passes the page cache by; None: not here
    awaited: bool = False  # made for an extent that has not been taken yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Room to be made: a new file, or more of one."""

    id: int
    path: Path
    slab: Slab | None  #: the slab that grows; None: a new one
    start: int
    stop: int
    written: bool  #: zero-written; a file for one big image is written by that image

    @property
    def nbytes(self) -> int:
        """How much room it makes."""
        return self.stop - self.start


class Slabs:
    """All slab files of one folder."""

    def __init__(self, folder: Path, config: SlabConfig, files: Files) -> None:
        self.folder = folder
        self.config = config
        self.files = files
        self._slabs = dict[int, Slab]()
        self._lost = set[Place]()  # named by the catalog, but not there
        self._growing: Growth | None = None
        self._next_id = 1
        self._lock = -1

    # -- life ------------------------------------------------------------------------------------
    @classmethod
    def open(
        cls, folder: Path, live: Iterable[ImageRef | Extent], config: SlabConfig, files: Files
    ) -> Slabs:
        """Open the folder and free everything that `live` does not name.

        Raises: StatevisorError if two live extents overlap; Unavailable if another process has the
        folder open or the disk fails.
        """
        slabs = cls(folder, config, files)
        try:
            files.make_folder(folder)
            slabs._lock = files.lock(folder)
        except BlockingIOError as error:
            raise Unavailable(
                f"another process has {folder} open",
                hint="Stop it, or give this server a data folder of its own.",
            ) from error
        except OSError as error:
            raise Unavailable(f"cannot use {folder}: {error.strerror}") from error
        try:
            slabs._load(_without_repeats(live))
        except BaseException:
            slabs.close()
            raise
        return slabs

    def close(self) -> None:
        """Close every file and let go of the folder."""
        for slab in self._slabs.values():
            self._close(slab)
        self._slabs.clear()
        if self._lock >= 0:
            self.files.close(self._lock)
            self._lock = -1

    def _load(self, live: Extents) -> None:
        paths = {
            int(match[1]): path
            for path in self.folder.iterdir()
            if (match := _NAME.match(path.name))
        }
        self._next_id = 1 + max([0, *paths, *live.slabs])
        for slab_id in sorted(paths):
            self._load_slab(slab_id, paths[slab_id], live)
        for slab_id in live.slabs - paths.keys():
            self._lose(slab_id, live.of(slab_id))
        for slab in self.trim():
            self.remove(slab)

    def _load_slab(self, slab_id: int, path: Path, live: Extents) -> None:
        try:
            fd = self.files.open(path)
        except OSError as error:
            if error.errno in _NOT_NOW:  # its images are whole: no actor may be judged by it
                raise Unavailable(
                    f"cannot open {path}: {error.strerror}",
                    hint="Let the server read and write everything in its data folder.",
                ) from error
            self._lose(slab_id, live.of(slab_id))
            return
        size = self.files.size(fd) // ALIGN * ALIGN
        slab = Slab(slab_id, path, fd, FreeList(0), self.files.open_direct(path))
        self._slabs[slab_id] = slab
        slab.room = FreeList(size, (one for one in live.of(slab_id) if sum(one) <= size))
        self._lose(slab_id, (one for one in live.of(slab_id) if sum(one) > size))

    def _lose(self, slab_id: int, extents: Iterable[tuple[int, int]]) -> None:
        for offset, length in extents:
            self._lost.add(Place(slab=slab_id, offset=offset, length=length))

    # -- reading ---------------------------------------------------------------------------------
    def find(self, slab_id: int) -> Slab | None:
        """The slab of that id, if its file is there."""
        return self._slabs.get(slab_id)

    def all(self) -> tuple[Slab, ...]:
        """Every slab whose file is there."""
        return tuple(self._slabs.values())

    def extents(self) -> frozenset[Extent]:
        """Everything that is in use, lost extents included."""
        lost = [Extent(it.slab, it.offset, it.length) for it in self._lost]
        return frozenset(
            Extent(slab.id, offset, length)
            for slab in self._slabs.values()
            for offset, length in slab.room.ranges()
        ).union(lost)

    @property
    def used_bytes(self) -> int:
        """Bytes of all extents."""
        return sum(slab.room.used_bytes for slab in self._slabs.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of all slab files."""
        return sum(slab.room.size for slab in self._slabs.values())

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the slab files and of what they may still grow by."""
        whole = self.file_bytes + self.files.room(self.folder)
        return whole if self.config.limit_bytes is None else min(whole, self.config.limit_bytes)

    def wants_room(self, length: int) -> bool:
        """Whether another extent of that length would have to wait for room that can be made."""
        need = max(length, self.config.step_bytes)
        return need <= self.config.slab_bytes and not self._has_room(need, None) and self.fits(need)

    def fits(self, length: int) -> bool:
        """Whether there is room for an extent of that length, or can be made."""
        if self._has_room(length, None):
            return True
        growth = self._growth(length)
        return self._allows(growth) and growth.nbytes <= self.files.room(self.folder)

    def _allows(self, growth: Growth) -> bool:
        limit = self.config.limit_bytes
        return limit is None or self.file_bytes + growth.nbytes <= limit

    # -- changing --------------------------------------------------------------------------------
    def take(self, length: int) -> Place | None:
        """The first free room of that length, or None."""
        for slab in self._slabs.values():
            if length <= slab.room.largest:
                slab.awaited = False
                offset = slab.room.take(length)
                assert offset is not None
                return Place(slab=slab.id, offset=offset, length=length)
        return None

    def give(self, place: Place) -> None:
        """Free an extent. Raises: StatevisorError if it is not in use."""
        if place in self._lost:
            self._lost.remove(place)
            return
        slab = self._slabs.get(place.slab)
        if slab is None:
            raise StatevisorError(f"{place} is not in use: there is no such slab")
        slab.room.give(place.offset, place.length)

    def trim(self) -> list[Slab]:
        """Forget the empty slabs that need not be kept ready; `remove` is to be called for each."""
        gone = []
        for slab in [*self._slabs.values()][::-1]:  # the first is the one that is kept
            growing = self._growing is not None and self._growing.slab is slab
            if slab.room.empty and not growing and not slab.awaited and not self._keep(slab):
                gone.append(self._slabs.pop(slab.id))
        return gone

    def _keep(self, slab: Slab) -> bool:
        spare = slab.room.size <= self.config.slab_bytes
        return spare and not self._has_room(self.config.step_bytes, slab)

    def _has_room(self, length: int, beside: Slab | None) -> bool:
        # the newest first: that is where there mostly is some
        slabs = reversed(self._slabs.values())
        return any(slab.room.largest >= length for slab in slabs if slab is not beside)

    def remove(self, slab: Slab) -> None:
        """Close and delete the file of a slab that `trim` returned. Slow."""
        self._close(slab)
        self.files.unlink(slab.path)

    def _close(self, slab: Slab) -> None:
        for fd in (slab.fd, slab.direct):
            if fd is not None:
                self.files.close(fd)

    # -- growing ---------------------------------------------------------------------------------
    def plan(self, length: int) -> Growth:
        """What to write so that an extent of that length fits; one growth at a time.

        Raises: QuotaExceeded.
        """
        assert self._growing is None, "a growth is under way"
        growth = self._growth(length)
        if not self._allows(growth):
            raise QuotaExceeded(
                f"the images would need more than the {self.config.limit_bytes} bytes they may use",
                hint="Delete actors and run gc, or raise the limit.",
            )
        self._growing = growth
        if growth.slab is None:
            self._next_id += 1
        return growth

    def _growth(self, length: int) -> Growth:
        most = self.config.slab_bytes
        if length > most:
            return self._new_slab(length, written=False)
        step = self.config.step_bytes
        if self.config.limit_bytes is not None:  # the last step is shorter
            left = self.config.limit_bytes - self.file_bytes
            step = min(step, max(left, 0) // ALIGN * ALIGN)
        for slab in self._slabs.values():
            start, tail = slab.room.size, slab.room.tail
            if start < most and tail + most - start >= length:
                stop = min(most, start + max(step, length - tail))
                return Growth(
                    id=slab.id, path=slab.path, slab=slab, start=start, stop=stop, written=True
                )
        return self._new_slab(min(most, max(step, length)), written=True)

    def _new_slab(self, size: int, *, written: bool) -> Growth:
        path = self.folder / slab_name(self._next_id)
        return Growth(id=self._next_id, path=path, slab=None, start=0, stop=size, written=written)

    def perform(self, growth: Growth) -> int:
        """Write the growth, not yet synced; the descriptor of its file. Slow. Raises: OSError."""
        if growth.slab is not None:
            self._zero(growth.slab.fd, growth)
            return growth.slab.fd
        fd = self.files.create(growth.path)
        try:
            self._zero(fd, growth)
        except BaseException:
            self.files.close(fd)
            self.files.unlink(growth.path)
            raise
        return fd

    def _zero(self, fd: int, growth: Growth) -> None:
        for at in range(growth.start, growth.stop if growth.written else 0, len(_ZEROS)):
            self.files.write(fd, [memoryview(_ZEROS)[: growth.stop - at]], at)

    def adopt(self, growth: Growth, fd: int) -> None:
        """The growth is durable: hand its room out."""
        self._growing = None
        if growth.slab is not None:
            growth.slab.room.extend(growth.stop)
        else:
            room = FreeList(growth.stop)
            direct = self.files.open_direct(growth.path)
            self._slabs[growth.id] = Slab(
                growth.id, growth.path, fd, room, direct=direct, awaited=True
            )

    def abandon(self) -> None:
        """The growth failed: its room does not exist."""
        self._growing = None

    def check(self) -> None:
        """Raise AssertionError unless every byte of every slab is free or used, once."""
        for slab in self._slabs.values():
            slab.room.check()


def slab_name(slab_id: int) -> str:
    """The name of a slab's file."""
    return f"{slab_id:08d}.slab"


def _without_repeats(live: Iterable[ImageRef | Extent]) -> Extents:
    if isinstance(live, Extents):
        return live
    found = Extents()
    for one in {(ref.slab, ref.offset, ref.length) for ref in live}:
        found.add(*one)
    return found


def place_of(ref: ImageRef) -> Place:
    """Where a ref says its extent lies."""
    return Place(slab=ref.slab, offset=ref.offset, length=ref.length)
