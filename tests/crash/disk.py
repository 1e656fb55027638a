"""A disk that loses power: what may be left of recorded system calls at any instant.

Bytes that were not synced survive sector by sector, by chance; so do lengths of files. A name that
was not synced with its folder was made, removed or not, by chance; later changes of a name that
did not happen do not happen either. What a finished sync covers is kept.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
_HEAD = struct.Struct("<BiqI")


class Call(IntEnum):
    """As in recorder.c."""

    OPEN = 1
    CLOSE = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    UNLINK = 7
    RENAME = 8
    MKDIR = 9
    EXIT = 10  #: the process ended; written by no recorder


class Entry(NamedTuple):
    """One recorded call."""

    call: Call
    fd: int
    number: int  #: offset, length, or whether the file was made
    data: bytes


def pack(call: Call, fd: int, number: int, data: bytes) -> bytes:
    """An entry as it stands in a log."""
    return _HEAD.pack(call, fd, number, len(data)) + data


def entries(log: Path) -> Iterator[Entry]:
    """The log of one process, and its end."""
    raw = log.read_bytes()
    at = 0
    while at + _HEAD.size <= len(raw):
        call, fd, number, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        yield Entry(Call(call), fd, number, raw[at : at + size])
        at += size
    yield Entry(Call.EXIT, -1, 0, b"")


@dataclass(slots=True)
class Inode:
    """One file or folder."""

    is_folder: bool
    data: bytearray = field(default_factory=bytearray)  #: durable
    #: not durable yet, in order: number, offset, bytes; None for a length
    pending: list[tuple[int, int, bytes | None]] = field(default_factory=list)

    def settle(self, until: int) -> None:
        """A sync that began at that number has ended."""
        for _, at, data in (one for one in self.pending if one[0] <= until):
            _put(self.data, at, data)
        self.pending = [one for one in self.pending if one[0] > until]

    def left(self, keep: Callable[[], bool]) -> bytearray:
        """What a power failure leaves."""
        data = bytearray(self.data)
        for _, at, new in self.pending:
            if new is None:
                if keep():
                    _put(data, at, None)
                continue
            begin = at
            while begin < at + len(new):
                end = min(at + len(new), (begin // SECTOR + 1) * SECTOR)
                if keep():
                    _put(data, begin, new[begin - at : end - at])
                begin = end
        return data


def _put(data: bytearray, at: int, new: bytes | None) -> None:
    if new is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
        return
    data.extend(bytes(max(0, at - len(data))))
    data[at : at + len(new)] = new


@dataclass(frozen=True, slots=True)
class Naming:
    """A change of names: what each is from now on; None: nothing."""

    number: int
    names: dict[str, Inode | None]


class Disk:
    """Plays a recording call by call."""

    def __init__(self, folder: Path) -> None:
        self._root = str(folder)
        self._names: dict[str, Inode] = {self._root: Inode(is_folder=True)}  # durable
        self._now: dict[str, Inode] = dict(self._names)  # as programs see it
        self._changes: list[Naming] = []  # of names, not durable yet
        self._open: dict[int, str] = {}
        self._inodes: dict[int, Inode] = {}
        self._syncs: dict[int, list[int]] = {}
        self._number = 0
        self.syncs = 0  #: that have ended

    def adopt(self, name: str, data: bytes | None) -> None:
        """Begin with a file, or (None) a folder, that is durable."""
        inode = Inode(data is None, bytearray(data or b""))
        self._names[name] = self._now[name] = inode

    def play(self, entry: Entry) -> None:
        """One more call has happened."""
        self._number += 1
        match entry.call:
            case Call.OPEN:
                self._opened(entry)
            case Call.CLOSE:
                self._open.pop(entry.fd, None)
                self._inodes.pop(entry.fd, None)
            case Call.WRITE:
                change = (self._number, entry.number, entry.data)
                self._inodes[entry.fd].pending.append(change)
            case Call.TRUNCATE:
                self._inodes[entry.fd].pending.append((self._number, entry.number, None))
            case Call.SYNC_BEGIN:
                self._syncs.setdefault(entry.fd, []).append(self._number)
            case Call.SYNC_END:
                self._synced(entry.fd)
            case Call.UNLINK:
                self._name({entry.data.decode(): None})
            case Call.MKDIR:
                self._name({entry.data.decode(): Inode(is_folder=True)})
            case Call.EXIT:
                self._open, self._inodes, self._syncs = {}, {}, {}
            case Call.RENAME:
                old, new = entry.data.decode().split("\0")
                self._name({old: None, new: self._now[old]})

    def _opened(self, entry: Entry) -> None:
        name = entry.data.decode()
        if entry.number:
            self._name({name: Inode(is_folder=False)})
        self._open[entry.fd] = name
        self._inodes[entry.fd] = self._now[name]

    def _name(self, names: dict[str, Inode | None]) -> None:
        self._changes.append(Naming(self._number, names))
        _rename(self._now, names)

    def _synced(self, fd: int) -> None:
        # Whichever of several syncs of one descriptor ended: the first that began covers least.
        until = self._syncs[fd].pop(0)
        self.syncs += 1
        inode = self._inodes[fd]
        inode.settle(until)
        if inode.is_folder:
            folder = self._open[fd]
            here = [c for c in self._changes if c.number <= until and _within(c, folder)]
            for change in here:
                _rename(self._names, change.names)
            self._changes = [change for change in self._changes if change not in here]

    # -- afterwards ------------------------------------------------------------------------------
    def whole(self) -> dict[str, bytes]:
        """Every file as programs saw it last, by its path below the root."""
        return self._files(self._now, lambda: True)

    def fail(self, rng: random.Random) -> dict[str, bytes]:
        """Every file that a power failure now may leave, by its path below the root."""
        chance = rng.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))
        names, broken = dict(self._names), set[str]()
        for change in self._changes:
            if broken.isdisjoint(change.names) and rng.random() < chance:
                _rename(names, change.names)
            else:
                broken.update(change.names)
        return self._files(names, lambda: rng.random() < chance)

    def _files(self, names: dict[str, Inode], keep: Callable[[], bool]) -> dict[str, bytes]:
        return {
            name[len(self._root) + 1 :]: bytes(inode.left(keep))
            for name, inode in sorted(names.items())
            if not inode.is_folder and os.path.dirname(name) in names
        }


def _rename(names: dict[str, Inode], changes: dict[str, Inode | None]) -> None:
    for name, inode in changes.items():
        names.pop(name, None)
        if inode is not None:
            names[name] = inode


def _within(change: Naming, folder: str) -> bool:
    return all(os.path.dirname(name) == folder for name in change.names)


def write(files: dict[str, bytes], folder: Path) -> None:
    """Put what is left into a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
