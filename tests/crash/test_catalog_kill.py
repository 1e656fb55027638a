"""kill -9 between any two statements of the catalog: nothing that was acknowledged is lost.

`STATEVISOR_CRASH_ROUNDS` sets how many lives are ended; the points are spread over a whole life.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statevisor.hypervisor.catalog_port import ActorQuery
from statevisor.hypervisor.errors import StatevisorError
from statevisor.store.catalog import SqlCatalog
from statevisor.store.packing import pack_run

sys.path.insert(0, str(Path(__file__).parent))
from catalog_worker import token

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("STATEVISOR_CRASH_ROUNDS", "10"))
#: About as many as one whole life has.
STATEMENTS = 440

Live = Callable[..., int]


@pytest.fixture
def live() -> Iterator[Live]:
    """Run one life of a folder; returns how it ended: -9, or 0 if it lived to its end."""
    worker = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("catalog_worker.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    lives = 0

    def run(folder: Path, at: int, *, after: bool = False, fault: str | None = None) -> int:
        nonlocal lives
        lives += 1
        order = {
            "folder": str(folder),
            "at": at,
            "after": after,
            "fault": fault,
            "number": lives,
        }
        worker.stdin.write(json.dumps(order) + "\n")
        worker.stdin.flush()
        return int(worker.stdout.readline())

    yield run
    worker.stdin.close()
    assert worker.wait(10) == 0
    worker.stdout.close()


async def losses(folder: Path) -> list[str]:
    """What was acknowledged in a folder and is not there, or is not as it was."""
    found: list[str] = []
    acks = folder / "acks"
    lines = acks.read_text().splitlines() if acks.exists() else []
    done = [json.loads(line) for line in lines]
    catalog = await SqlCatalog.open(folder)
    ends: dict[int, int] = {}
    for one in done:
        try:
            if one["op"] == "actor":
                await catalog.actor(one["id"])
            elif one["op"] == "version":
                await catalog.version(one["handle"])
            elif one["op"] == "turn":
                await catalog.turn(one["id"])
            elif one["op"] == "ended":
                turn = await catalog.turn(one["id"])
                if turn.finish is None or turn.position != one["position"]:
                    found.append(f"{one} is {turn}")
            elif one["op"] == "tokens":
                ends[one["segment"]] = max(one["end"], ends.get(one["segment"], 0))
        except StatevisorError as error:
            found.append(f"{one}: {error}")
    db = sqlite3.connect(folder / "catalog.db")
    segments = {segment for (segment,) in db.execute("SELECT id FROM segment")}
    page, _ = await catalog.actors(ActorQuery(limit=10_000))
    for segment in sorted(segments | {actor.segment for actor in page}):
        found += await wrong_tokens(catalog, segment, ends.get(segment, 0))
    found += [str(one) for one in await catalog.check()]
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
    await catalog.close()
    return found


async def wrong_tokens(catalog: SqlCatalog, segment: int, end: int) -> list[str]:
    """What is missing before `end` or wrong anywhere on a path."""
    runs = await catalog.transcript(segment, 0, 10**9)
    tokens = [one for run in runs for one in run.tokens]
    starts = []
    here = await catalog.segment(segment)
    while True:
        starts.append((here.position, here.id))
        if here.parent is None:
            break
        here = await catalog.segment(here.parent)
    wanted = [
        token(next(number for start, number in starts if start <= at), at)
        for at in range(len(tokens))
    ]
    faults = []
    if len(tokens) < end:
        faults.append(f"segment {segment}: {len(tokens)} tokens of {end} acknowledged")
    if tokens != wanted:
        faults.append(f"segment {segment}: wrong tokens")
    return faults


async def test_nothing_acknowledged_is_lost(live, tmp_path):
    """One folder, one life after the other, each ended a little later than the one before."""
    ended = [
        live(tmp_path, 1 + round_ * STATEMENTS // ROUNDS, after=round_ % 2 == 1)
        for round_ in range(ROUNDS)
    ]
    assert ended[0] == -signal.SIGKILL
    assert ended.count(-signal.SIGKILL) > ROUNDS // 3
    assert live(tmp_path, 0) == 0

    assert (tmp_path / "acks").read_text().count("tokens") > 20
    assert await losses(tmp_path) == []


async def test_every_statement_of_a_turn(live, tmp_path):
    """Each life is ended one statement after the one before, from its first turn on."""
    for at in range(60, min(60 + 2 * ROUNDS, STATEMENTS)):
        assert live(tmp_path, at, after=at % 2 == 0) == -signal.SIGKILL
    assert await losses(tmp_path) == []


async def test_a_gate_that_opens_before_the_commit_is_caught(live, tmp_path):
    for at in range(40, 400, 3):
        live(tmp_path, at, fault="early gate")
        if await losses(tmp_path):
            return
    pytest.fail("the early gate was not noticed")


async def test_a_token_that_changed_is_caught(live, tmp_path):
    assert live(tmp_path, 0) == 0
    db = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    query = "SELECT segment, start, kind, count FROM token_run WHERE rowid = 3"
    segment, start, kind, count = db.execute(query).fetchone()
    changed = pack_run(segment, start, kind, [0] * count)  # with a sum, or it would not be served
    db.execute("UPDATE token_run SET data = ? WHERE rowid = 3", (changed,))
    db.close()
    assert await losses(tmp_path) != []
