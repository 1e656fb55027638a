"""What the disk itself takes for the same bytes: the floors that moves are held against."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from statevisor.guests.pages import pages

_PLACES = 8


class Floor:
    """A file that was written before, as slabs are, read and rewritten in `nbytes` at a time."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.nbytes = -(-nbytes // 4096) * 4096
        self._turn = 0
        self._memory = pages(self.nbytes)
        self._memory[:] = os.urandom(self.nbytes)
        self._small_pages = memoryview(mmap.mmap(-1, self.nbytes))
        self._small_pages[:] = self._memory
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        for place in range(_PLACES):
            os.pwrite(self._fd, self._memory, place * self.nbytes)
        os.fsync(self._fd)
        self._direct, self.is_direct = self._open_direct(path)

    def _open_direct(self, path: Path) -> tuple[int, bool]:
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except OSError:  # a file system in memory
            return os.open(path, os.O_RDONLY), False

    def write(self, times: int = 1) -> None:
        """Write so many times, then sync once."""
        for _ in range(times):
            self._turn += 1
            os.pwrite(self._fd, self._memory, self._at())
        os.fdatasync(self._fd)

    def read(self) -> None:
        """Read what was written last, past the page cache, into memory of large pages."""
        os.preadv(self._direct, [self._memory], self._at())

    def read_small_pages(self) -> None:
        """The same, into memory of small pages, each wherever the system had one."""
        os.preadv(self._direct, [self._small_pages], self._at())

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._direct)

    def _at(self) -> int:
        return self._turn % _PLACES * self.nbytes
