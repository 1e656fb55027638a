"""Opening the catalog's database: the only module that knows it is SQLite.

One connection writes, on one thread; others read, each call in one snapshot. A call crosses
threads once, whatever the number of its statements (measured: a statement through an asyncio
driver costs four times as much).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.migrations.run import upgrade

FILE = "catalog.db"
_BUSY_MS = 5_000
READERS = 4  #: connections that read at the same time


class FolderLock:
    """The right to be the only server of a data folder; the kernel takes it back at exit."""

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self._path = folder / name
        self._file: int | None = None

    def acquire(self) -> Self:
        """Raises: Unavailable, if another process holds it."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(file)
            raise Unavailable(
                f"the data folder {self._path.parent} is in use by process {holder}",
                hint="Stop the other server, or give this one a --data folder of its own.",
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file
        return self

    def release(self) -> None:
        """Give it back; does nothing if it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def open_writer(path: Path) -> Engine:
    """The engine of the one writing connection; its transactions begin with the write lock."""
    engine = create_engine(f"sqlite:///{path}", poolclass=QueuePool, pool_size=1, max_overflow=0)
    _prepare(engine, begin="BEGIN IMMEDIATE", read_only=False)
    return engine


def open_readers(path: Path) -> Engine:
    """The engine of the reading connections; its transactions are snapshots."""
    engine = create_engine(
        f"sqlite:///{path}", poolclass=QueuePool, pool_size=READERS, max_overflow=0
    )
    _prepare(engine, begin="BEGIN", read_only=True)
    return engine


def migrate(folder: Path) -> Path:
    """Bring the folder's database to the newest schema, alone, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    guard = os.open(folder / "migrate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        engine = open_writer(path)
        try:
            with translated(), engine.begin() as conn:
                upgrade(conn)
        finally:
            engine.dispose()
        _sync_folder(folder)
    finally:
        os.close(guard)
    return path


@contextmanager
def translated() -> Iterator[None]:
    """Turn the database's own errors into ours. Raises: Unavailable, StatevisorError."""
    try:
        yield
    except DBAPIError as error:
        raise as_ours(error) from error


def as_ours(error: DBAPIError) -> StatevisorError:
    """The database's error in our words: a full disk or a lock is not a fault of the program."""
    if is_outage(error):
        return Unavailable(
            f"the catalog cannot be used now: {error.orig}",
            hint="Look at the disk that holds the data folder, then restart the server.",
        )
    return StatevisorError(f"the catalog refused a statement: {error.orig}")


def is_outage(error: DBAPIError) -> bool:
    """Whether the database itself is in trouble (disk, lock), not the one statement."""
    return isinstance(error.orig, sqlite3.OperationalError) or error.connection_invalidated


def _prepare(engine: Engine, *, begin: str, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _record: Any) -> None:
        dbapi.isolation_level = None  # transactions are begun below, not by the driver
        pragmas = (
            "journal_mode=WAL",
            "synchronous=FULL",
            "fullfsync=ON",
            "foreign_keys=ON",
            f"busy_timeout={_BUSY_MS}",
            "cache_size=-32768",
            f"query_only={'ON' if read_only else 'OFF'}",
        )
        for pragma in pragmas:
            dbapi.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql(begin)


def _sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
