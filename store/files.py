"""The file operations of the image store, in one place so that a test can fail exactly one."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

Buffers = Sequence[bytes | memoryview]


class Files:
    """Plain POSIX files. Safe on any thread. Every method raises OSError."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder with its parents, durably."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self.sync_folder(folder.parent)

    def create(self, path: Path) -> int:
        """A descriptor of a new, empty file."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def open(self, path: Path) -> int:
        """A descriptor of an existing file, for reading and writing."""
        return os.open(path, os.O_RDWR)

    def open_direct(self, path: Path) -> int | None:
        """A descriptor that passes the page cache by; None where the file system has none."""
        try:
            return os.open(path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            return None

    def write(self, fd: int, buffers: Buffers, offset: int) -> None:
        """Write all buffers, one behind the other."""
        left = _skip([memoryview(buffer).cast("B") for buffer in buffers], 0)
        while left:
            done = os.pwritev(fd, left, offset)
            offset += done
            left = _skip(left, done)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers one behind the other; bytes read, fewer only at the end of the file."""
        left, total = _skip(buffers, 0), 0
        while left and (done := os.preadv(fd, left, offset + total)):
            total += done
            left = _skip(left, done)
        return total

    def expect(self, fd: int, offset: int, length: int) -> None:
        """Let the disk begin to read what will be read next; the reader hashes meanwhile."""
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def begin_sync(self, fd: int, offset: int, length: int) -> None:
        """Let the disk begin to write what was just written; `sync` is still needed."""
        # what is being written cannot be forgotten yet: so Linux starts the write and keeps it
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    def size(self, fd: int) -> int:
        """Bytes of the file."""
        return os.fstat(fd).st_size

    def sync(self, fd: int) -> None:
        """Make what was written durable, the file's length included.

        Raises: OSError, also if the file has lost its name: nobody would find it again.
        """
        os.fdatasync(fd)
        if not os.fstat(fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed")

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def lock(self, folder: Path) -> int:
        """Hold a folder until the descriptor is closed. Raises: BlockingIOError if held."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def room(self, folder: Path) -> int:
        """Bytes that the file system can still take."""
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize


def _skip(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of the buffers behind the first `done` bytes."""
    left = []
    for buffer in buffers:
        if done < len(buffer):
            left.append(buffer[done:])
        done = max(0, done - len(buffer))
    return left
