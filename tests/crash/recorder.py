"""The recorder of a machine without a compiler: what Python sees of a life's changes.

Files of images and acknowledgements are recorded call by call. Of the catalog only the outcome is
seen: what its files hold after each statement, and that a commit syncs what it wrote, as SQLite
promises at the level that its connection has. So the order of the catalog and the images is under
test here, and SQLite itself is not; recorder.c sees the system calls of both.
"""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

from statevisor.store import db, prepared, writer
from statevisor.store.files import Buffers, Files

from disk import SECTOR, Call, pack  # isort: skip  # beside this file

FULL = 2  #: PRAGMA synchronous


class Log:
    """One log of all threads."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self.fds = itertools.count(1 << 20)  # for what has no descriptor that Python sees
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, call: Call, fd: int, number: int = 0, data: bytes = b"") -> None:
        os.write(self._fd, pack(call, fd, number, data))

    def end(self) -> None:
        """Hold up whoever would write a line, or commit: the process ends."""
        self.lock.acquire()

    def sync_folder(self, folder: Path) -> None:
        """A sync of names that has ended."""
        fd = next(self.fds)
        self.note(Call.OPEN, fd, 0, bytes(folder))
        self.note(Call.SYNC_BEGIN, fd)
        self.note(Call.SYNC_END, fd)


class RecordedFiles(Files):
    """Every change of an image file, with the sync that makes it durable."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._real_sync = os.fdatasync
        # Not the method `sync`: what is asked of the system counts.
        os.fdatasync = self._fdatasync  # type: ignore[assignment]

    def _fdatasync(self, fd: int) -> None:
        with self._log.lock:
            self._log.note(Call.SYNC_BEGIN, fd)
        self._real_sync(fd)
        with self._log.lock:
            self._log.note(Call.SYNC_END, fd)

    def create(self, path: Path) -> int:
        with self._log.lock:
            fd = super().create(path)
            self._log.note(Call.OPEN, fd, 1, bytes(path))
            return fd

    def open(self, path: Path) -> int:
        with self._log.lock:
            fd = super().open(path)
            self._log.note(Call.OPEN, fd, 0, bytes(path))
            return fd

    def write(self, fd: int, buffers: Buffers, offset: int) -> None:
        with self._log.lock:
            super().write(fd, buffers, offset)
            self._log.note(Call.WRITE, fd, offset, b"".join(buffers))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        with self._log.lock:
            self._log.sync_folder(folder)

    def unlink(self, path: Path) -> None:
        with self._log.lock:
            super().unlink(path)
            self._log.note(Call.UNLINK, -1, 0, bytes(path))


class Watched:
    """One file of the catalog as it was when last looked at."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._data = b""
        self._fd: int | None = None
        if path.exists():
            self._open(made=0)
            self._data = path.read_bytes()

    def _open(self, made: int) -> None:
        self._fd = next(self._log.fds)
        self._log.note(Call.OPEN, self._fd, made, bytes(self._path))
        if made:
            self._log.sync_folder(self._path.parent)  # SQLite does, at its first sync

    def look(self) -> None:
        """Note what has changed."""
        if not self._path.exists():
            return
        if self._fd is None:
            self._open(made=1)
        assert self._fd is not None
        data, old = self._path.read_bytes(), self._data
        if len(data) < len(old):
            self._log.note(Call.TRUNCATE, self._fd, len(data))
        for at in range(0, len(data), SECTOR):
            if data[at : at + SECTOR] != old[at : at + SECTOR]:
                self._log.note(Call.WRITE, self._fd, at, data[at : at + SECTOR])
        self._data = data

    def sync(self) -> None:
        if self._fd is not None:
            self._log.note(Call.SYNC_BEGIN, self._fd)
            self._log.note(Call.SYNC_END, self._fd)


def watch_catalog(folder: Path, log: Log) -> None:
    """Look at the catalog's files after every statement of this process."""
    real = prepared.execute
    wal, main = Watched(folder / f"{db.FILE}-wal", log), Watched(folder / db.FILE, log)

    def execute(conn: Any, sql: str, *args: Any, **kwargs: Any) -> Any:
        if sql == "COMMIT":
            with log.lock:  # or the process could end behind the commit and before the look
                return looked(conn, sql, real(conn, sql, *args, **kwargs))
        return looked(conn, sql, real(conn, sql, *args, **kwargs))

    def looked(conn: Any, sql: str, result: Any) -> Any:
        with log.lock:
            driver = conn.connection.driver_connection
            (level,) = driver.execute("PRAGMA synchronous").fetchone()
            wal.look()
            if sql == "COMMIT" and level >= FULL:
                wal.sync()
            main.look()
            main.sync()  # written at a checkpoint only, and synced at every level but OFF
        return result

    for module in (prepared, db, writer):
        module.execute = execute  # type: ignore[attr-defined]
