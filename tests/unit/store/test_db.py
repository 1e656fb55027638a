from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.store.catalog import SqlCatalog
from statevisor.store.db import (
    FolderLock,
    begin,
    finish,
    migrate,
    open_engine,
    translated,
)
from statevisor.store.prepared import execute


def test_a_folder_has_one_server(tmp_path):
    first = FolderLock(tmp_path).acquire()
    with pytest.raises(Unavailable, match=f"in use by process {os.getpid()}"):
        FolderLock(tmp_path).acquire()
    first.release()
    first.release()
    FolderLock(tmp_path).acquire().release()


def test_a_killed_server_holds_nothing(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from statevisor.store.db import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])).acquire(); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(Unavailable, match=f"process {child.pid}"):
            FolderLock(tmp_path).acquire()
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    FolderLock(tmp_path).acquire().release()


async def test_a_second_catalog_is_refused_until_the_first_is_closed(tmp_path):
    first = await SqlCatalog.open(tmp_path / "made" / "here")
    with pytest.raises(Unavailable, match="in use"):
        await SqlCatalog.open(tmp_path / "made" / "here")
    await first.close()
    await (await SqlCatalog.open(tmp_path / "made" / "here")).close()


async def test_a_failed_opening_lets_the_folder_go(tmp_path):
    (tmp_path / "catalog.db").write_bytes(b"this is no database, it only looks long enough" * 99)
    with pytest.raises(StatevisorError):
        await SqlCatalog.open(tmp_path)
    FolderLock(tmp_path).acquire().release()


@pytest.mark.parametrize("read_only", [False, True])
def test_connections_are_durable_and_checked(tmp_path, read_only):
    path = migrate(tmp_path)
    engine = open_engine(path, connections=1, read_only=read_only)
    with engine.connect() as conn:

        def pragma(name: str) -> object:
            return execute(conn, f"PRAGMA {name}")[0][0]

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == 2
        assert pragma("foreign_keys") == 1
        assert pragma("busy_timeout") == 5000
        assert pragma("query_only") == int(read_only)
    engine.dispose()


async def test_a_new_catalog_has_small_pages_and_an_older_one_keeps_its_own(tmp_path: Path) -> None:
    def pages(folder: Path) -> int:
        db = sqlite3.connect(folder / "catalog.db")
        size: int = db.execute("PRAGMA page_size").fetchone()[0]
        db.close()
        return size

    older = tmp_path / "older"
    older.mkdir()
    made = sqlite3.connect(older / "catalog.db")
    made.execute("PRAGMA page_size=4096")
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("VACUUM")
    made.close()
    for folder, size in ((tmp_path / "new", 2048), (older, 4096)):
        catalog = await SqlCatalog.open(folder)
        incarnation = await catalog.claim("test")
        await catalog.close()
        again = await SqlCatalog.open(folder)
        assert await again.claim("test") == incarnation + 1
        assert await again.check() == ()
        await again.close()
        assert pages(folder) == size


def test_a_reading_connection_cannot_write(tmp_path):
    engine = open_engine(migrate(tmp_path), connections=1, read_only=True)
    with engine.connect() as conn, pytest.raises(DBAPIError, match="readonly"):
        execute(conn, "INSERT INTO owner VALUES (1, 'x', 0)")
    engine.dispose()


def test_a_read_is_one_snapshot(tmp_path):
    path = migrate(tmp_path)
    engine = open_engine(path, connections=1, read_only=True)
    other = sqlite3.connect(path, isolation_level=None)
    with engine.connect() as conn:

        def count() -> int:
            return int(execute(conn, "SELECT count(*) FROM owner")[0][0])

        begin(conn, write=False)
        assert count() == 0
        other.execute("INSERT INTO owner VALUES (1, 'x', 0)")
        assert count() == 0
        finish(conn, commit=False)
        assert count() == 1
    other.close()
    engine.dispose()


def test_errors_of_the_database_become_ours(tmp_path):
    engine = open_engine(migrate(tmp_path), connections=1)
    with engine.connect() as conn:
        with pytest.raises(Unavailable), translated():
            execute(conn, "SELECT * FROM nothing")
        with pytest.raises(StatevisorError) as caught, translated():
            execute(conn, "INSERT INTO owner VALUES (NULL, NULL, NULL)")
        assert not isinstance(caught.value, Unavailable)
    engine.dispose()


def test_migrating_twice_changes_nothing(tmp_path: Path):
    path = migrate(tmp_path)
    before = sqlite3.connect(path).execute("SELECT sql FROM sqlite_master").fetchall()
    assert migrate(tmp_path) == path
    assert sqlite3.connect(path).execute("SELECT sql FROM sqlite_master").fetchall() == before


def test_a_database_from_the_future_is_refused(tmp_path: Path):
    db = sqlite3.connect(migrate(tmp_path), isolation_level=None)
    db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.close()
    with pytest.raises(StatevisorError, match="newer version"):
        migrate(tmp_path)


async def test_a_file_is_no_data_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Unavailable, match="as a data folder"):
            await SqlCatalog.open(folder)
