"""Opening the catalog's database: the only module that knows it is SQLite.

One connection writes, on one thread; others read, each call in one snapshot. A call crosses
threads once, whatever the number of its statements (measured: a statement through an asyncio
driver costs four times as much).
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from statevisor.hypervisor.errors import CatalogCorrupt, StatevisorError, Unavailable
from statevisor.migrations.run import NewerSchema, upgrade
from statevisor.store.prepared import execute
from statevisor.store.tables import metadata

FILE = "catalog.db"
_PRAGMAS = (
    # of a new file: each of the ten pages of a small change is written to the log as a whole
    "page_size=2048",
    "journal_mode=WAL",
    "synchronous=FULL",
    "fullfsync=ON",
    "foreign_keys=ON",
    "busy_timeout=5000",
    "cache_size=-32768",
    "journal_size_limit=67108864",
)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_DISK = "Free room on the disk of the data folder; the server then goes on by itself."
_PARSE = json.JSONDecoder().raw_decode
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


def check_unused(folder: Path) -> None:
    """Raises: Unavailable, if another process has the folder now."""
    if folder.is_dir():
        with suppress(OSError):  # told by whoever opens the folder
            FolderLock(folder).acquire().release()


class Anchor:
    """The files that a database was opened from, and whether they still bear their names.

    SQLite goes on in files that were removed or replaced: what is committed there is gone at the
    next start.
    """

    def __init__(self, path: Path) -> None:
        self._paths = (str(path), f"{path}-wal")
        self._known: tuple[int, int, int, int] | None = None

    def check(self) -> None:
        """Compare with what the first call found; both must be open. Raises: Unavailable."""
        try:
            main, log = map(os.stat, self._paths)
        except OSError as error:
            raise self._lost(error.strerror) from error
        found = (main.st_dev, main.st_ino, log.st_dev, log.st_ino)
        if self._known is None:
            self._known = found
        elif found != self._known:
            raise self._lost("another file stands there")

    def _lost(self, why: str | None) -> Unavailable:
        return Unavailable(
            f"{self._paths[0]} was removed or replaced while it was in use: {why}",
            hint="Put the data folder back and start the server again.",
        )


def open_engine(path: Path, *, connections: int, read_only: bool = False) -> Engine:
    """An engine whose connections begin no transaction by themselves: see `begin` and `finish`."""
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        json_serializer=_json,
        json_deserializer=_parsed,
    )

    @event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _record: Any) -> None:
        dbapi.isolation_level = None
        for pragma in (*_PRAGMAS, f"query_only={'ON' if read_only else 'OFF'}"):
            dbapi.execute(f"PRAGMA {pragma}")

    return engine


def _json(value: Any) -> str:
    # nearly all labels are none, and the encoder takes longer than to insert them
    return "{}" if value == {} else json.dumps(value)


def _parsed(text: str) -> Any:
    # `json.loads` looks for blanks around what was written without any: half of its time
    return _PARSE(text)[0]


def faults(conn: Connection) -> list[str]:
    """What the database itself finds wrong in its file; reads all of it. Raises: DBAPIError."""
    found = [str(row[0]) for row in execute(conn, "PRAGMA integrity_check") if row[0] != "ok"]
    for table, row, parent, _ in execute(conn, "PRAGMA foreign_key_check"):
        found.append(f"row {row} of {table} names a row of {parent} that does not exist")
    return found


def copy(path: Path, target: Path) -> None:
    """Copy a database as it is at one moment, while others use it; durable when it returns.

    Slow. Raises: Unavailable, StatevisorError.
    """
    try:
        with (
            closing(sqlite3.connect(path)) as source,
            closing(sqlite3.connect(target)) as made,
        ):
            source.backup(made)
            # One file: nothing of the copy may be left in a log beside it.
            made.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.OperationalError as error:
        raise Unavailable(f"cannot copy the catalog to {target}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StatevisorError(f"the catalog cannot be copied: {error}") from error


def begin(conn: Connection, *, write: bool) -> None:
    """Begin a transaction: with the write lock, or as a snapshot. Raises: DBAPIError."""
    execute(conn, "BEGIN IMMEDIATE" if write else "BEGIN")


def finish(conn: Connection, *, commit: bool) -> None:
    """End the transaction. Raises: DBAPIError."""
    execute(conn, "COMMIT" if commit else "ROLLBACK")


def migrate(folder: Path) -> Path:
    """Bring the folder's database to the newest schema, alone, and return its path.

    Raises: Unavailable (the disk fails), StatevisorError (the schema is from the future).
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    guard = os.open(folder / "migrate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        engine = open_engine(path, connections=1)
        event.listen(engine, "begin", lambda conn: begin(conn, write=True))
        try:
            with translated(), engine.begin() as conn:
                upgrade(conn, metadata)
        except NewerSchema as error:
            raise StatevisorError(
                f"{path} was written by a newer version of this program: {error}",
                hint="Upgrade the program, or use another --data folder.",
            ) from error
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
    if _kind(error) in _DAMAGED:
        return CatalogCorrupt(f"the catalog is damaged: {error.orig}")
    if is_full(error):
        return Unavailable(f"the catalog cannot be written: {error.orig}", hint=_NO_DISK)
    if is_outage(error):
        return Unavailable(
            f"the catalog cannot be used now: {error.orig}",
            hint="Look at the disk that holds the data folder, then restart the server.",
        )
    return StatevisorError(f"the catalog refused a statement: {error.orig}")


def is_full(error: DBAPIError) -> bool:
    """Whether there was no room on the disk: the file is as before, and room may come back."""
    return _kind(error) == sqlite3.SQLITE_FULL


def is_locked(error: DBAPIError) -> bool:
    """Whether somebody else held the lock for too long: nothing was done."""
    return _kind(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _kind(error: DBAPIError) -> int:
    """SQLite's primary code; 0 if the error is not its own."""
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF


def is_outage(error: DBAPIError) -> bool:
    """Whether the database itself is in trouble (disk, lock), not the one statement."""
    # The bare class is how damage of the file itself is told.
    kind = type(error.orig)
    return issubclass(kind, sqlite3.OperationalError) or kind is sqlite3.DatabaseError


def reserve(conn: Connection, tables: Sequence[str], count: int) -> list[int]:
    """Take so many ids of each of some tables whose ids are never used again; the first of each.

    Each has had a row before. Raises: DBAPIError.
    """
    marks = ",".join("?" * len(tables))
    execute(
        conn, f"UPDATE sqlite_sequence SET seq = seq + ? WHERE name IN ({marks})", (count, *tables)
    )
    query = f"SELECT name, seq FROM sqlite_sequence WHERE name IN ({marks})"
    last: dict[str, int] = dict(execute(conn, query, tables))
    return [last[name] - count + 1 for name in tables]


def _sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
