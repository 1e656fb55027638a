"""Kills a migration of an old folder at every statement: `migration_child.py FOLDER [apart]`.

Prints one JSON object: how often it was killed, and what was wrong behind any point. `apart` takes
the guard out: every statement is committed by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from alembic import command
from sqlalchemy import Engine, event

from statevisor.migrations.run import _config, head
from statevisor.store.db import FILE, begin, migrate, open_engine

OLD = "0003"
VERSIONS = 60


def child(work: Callable[[], object]) -> int:
    """Do it in a process of its own; returns its exit code, below 0 if it was killed."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def make_old(folder: Path) -> None:
    """A folder of the third schema: two lives, forks, rules, a blend."""
    folder.mkdir()
    engine = open_engine(folder / FILE, connections=1)
    event.listen(engine, "begin", lambda conn: begin(conn, write=True))
    with engine.begin() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, OLD)
    engine.dispose()
    conn = sqlite3.connect(folder / FILE)
    for number, actor in enumerate("ab"):
        facts = {"name": f"name-{actor}", "segment": number + 1, "seed": number, "head": 1}
        put(conn, "actor", id=actor, labels="{}", **facts)
    for n in range(1, VERSIONS + 1):
        place = {"actor_id": "ab"[n % 2], "position": 5 * n, "rooted": int(n % 3 == 0)}
        put(conn, "segment", id=n, parent=n - 2 if n > 2 else None, depth=n, **place)
        version = {key: place[key] for key in ("actor_id", "position")} | {"build": f"b-{n % 4}"}
        put(conn, "version", id=n, seq=n, segment=n, op="turn", labels="{}", **version)
        if n > 2:
            edge = {"child": n, "ord": 0, "parent": n - 2, "kind": "main"}
            put(conn, "version_parent", **edge)
    put(conn, "version_parent", child=9, ord=1, parent=4, kind="merge", weight=0.5)
    conn.commit()
    conn.close()


def put(conn: sqlite3.Connection, table: str, **values: Any) -> None:
    """A row with 0 or "x" wherever something must stand and nothing is given."""
    for _, name, kind, needed, default, key in conn.execute(f"PRAGMA table_info({table})"):
        if needed and default is None and name not in values and not key:
            values[name] = "x" if "CHAR" in kind or kind == "TEXT" else 0
    known = {row[1] for row in conn.execute(f"PRAGMA table_info({table})")}
    values = {name: value for name, value in values.items() if name in known}
    marks = ", ".join("?" * len(values))
    names = ", ".join(f'"{name}"' for name in values)
    conn.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))


def dump(folder: Path) -> tuple[str, list[str]]:
    """Revision, and schema and rows of everything."""
    conn = sqlite3.connect(folder / FILE)
    try:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert not conn.execute("PRAGMA foreign_key_check").fetchall()
        (revision,) = conn.execute("SELECT version_num FROM alembic_version").fetchone()
        return revision, sorted(conn.iterdump())
    finally:
        conn.close()


def commit_apart(conn: Any, *rest: Any) -> None:
    dbapi = conn.connection.dbapi_connection
    if dbapi.in_transaction:
        dbapi.execute("COMMIT")
        dbapi.execute("BEGIN IMMEDIATE")


def doomed(folder: Path, point: int, *, apart: bool) -> None:
    """Migrate, and die before statement number `point`, or right before or behind a commit."""
    steps = count(1)

    def step(*args: Any, **kwargs: Any) -> None:
        if next(steps) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", step)
    event.listen(Engine, "commit", step)
    if apart:
        event.listen(Engine, "after_cursor_execute", commit_apart)
    migrate(folder)
    step()


def main() -> None:
    base, apart = Path(sys.argv[1]), sys.argv[2:] == ["apart"]
    old, work, whole = base / "old", base / "work", base / "whole"
    assert child(lambda: make_old(old)) == 0
    shutil.copytree(old, whole)
    assert child(lambda: migrate(whole)) == 0
    before, after = dump(old), dump(whole)
    faults, killed = [], 0
    for point in count(1):
        shutil.copytree(old, work)
        code = child(lambda point=point: doomed(work, point, apart=apart))
        killed += code == -signal.SIGKILL
        if (found := dump(work)) not in (before, after):
            faults.append(f"point {point}: neither old nor new, at {found[0]}")
        if child(lambda: migrate(work)) != 0 or dump(work) != after:
            faults.append(f"point {point}: it does not come up as new")
        shutil.rmtree(work)
        if code == 0 or (apart and faults):
            break
    sys.stdout.write(
        json.dumps({"from": before[0], "to": after[0], "killed": killed, "faults": faults}) + "\n"
    )
    assert (before[0], after[0]) == (OLD, head())


if __name__ == "__main__":
    main()
