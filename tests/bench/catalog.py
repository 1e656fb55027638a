"""How long the catalog's operations take: `python tests/bench/catalog.py --rounds N --folder D`.

Prints milliseconds for single calls through the writer and for journal groups of several sizes:
wall time, and the processor time of the whole process, which other work on the machine does not
change. The last line is what the driver alone needs for one commit, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statevisor.hypervisor.catalog_port import Guard, JournalEntry, NewActor, Origin
from statevisor.hypervisor.records import TurnRecord
from statevisor.hypervisor.vocab import FinishReason
from statevisor.store.catalog import SqlCatalog


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of calls made one after another."""

    wall: Sequence[float]
    cpu: Sequence[float]


def say(name: str, times: Times, share: int = 1) -> None:
    """One line: quantiles of the wall time, for one of `share` things done in a call.

    On a busy machine the tenth percentile is the nearest to what an idle one shows.
    """
    wall = sorted(one / share for one in times.wall)
    cpu = statistics.median(times.cpu) / share
    marks = "".join(
        f"p{mark} {wall[min(len(wall) - 1, mark * len(wall) // 100)] * 1e3:8.3f}   "
        for mark in (10, 50, 99)
    )
    sys.stdout.write(f"{name:26} ms: {marks}cpu {cpu * 1e3:8.3f}\n")


def bound(rows: int, commits: Times) -> None:
    """One line: the tokens a second of an engine that waits for nothing but its journal."""
    wall = sorted(commits.wall)
    rates = "".join(
        f"p{mark} {rows / wall[mark * len(wall) // 100]:12,.0f}   " for mark in (10, 50)
    )
    share = rows / statistics.median(commits.cpu)
    sys.stdout.write(f"{'':21} tokens/s: {rates}of one core {share:12,.0f}\n")


async def timed(calls: Sequence[Callable[[], Awaitable[object]]]) -> Times:
    """Time calls, one after another."""
    wall, cpu = [], []
    for call in calls:
        begin, spent = time.perf_counter(), time.process_time()
        await call()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - spent)
    return Times(wall, cpu)


async def lives(catalog: SqlCatalog, rounds: int) -> None:
    """Single operations, one caller."""

    def new(kind: str, number: int) -> NewActor:
        return NewActor(
            id=f"act_{kind}{number:06}", name=f"{kind}-{number}", model="m", seed=1, labels={}
        )

    made = await catalog.create(new("a", 0), range(1000))
    origin = Origin(segment=made.segment, position=made.position, handle="a-0@0")
    bare = Origin(segment=made.segment, position=500, handle=None)
    kinds: dict[str, Times] = {}
    create = [lambda n=n: catalog.create(new("c", n), (1, 2, 3)) for n in range(rounds)]
    fork = [lambda n=n: catalog.fork([new("f", n)], origin) for n in range(rounds)]
    forks = [
        lambda n=n: catalog.fork([new("g", 64 * n + k) for k in range(64)], bare)
        for n in range(rounds // 20)
    ]
    kinds["create"] = await timed(create)
    kinds["fork"] = await timed(fork)
    say("fork x64, per child", await timed(forks), 64)
    actors = [await catalog.actor(f"c-{n}") for n in range(rounds)]
    turns = [
        TurnRecord(
            id=f"turn_{n:06}",
            actor_id=actor.id,
            segment=actor.segment,
            start=3,
            prompt_tokens=20,
            settings={"temperature": 0.0, "seed": 1},
            position=23,
            created_at=0,
        )
        for n, actor in enumerate(actors)
    ]
    kinds["begin_turn"] = await timed(
        [lambda t=t: catalog.begin_turn(t, range(20), guard=Guard()) for t in turns]
    )
    for turn in turns:
        entry = JournalEntry(
            turn_id=turn.id, segment=turn.segment, position=23, tokens=tuple(range(50))
        )
        await catalog.journal([entry], incarnation=1)
    kinds["end_turn"] = await timed(
        [
            lambda t=t: catalog.end_turn(
                t.id,
                finish=FinishReason.LENGTH,
                position=73,
                text="text",
                result=None,
                guard=Guard(),
            )
            for t in turns
        ]
    )
    kinds["snapshot"] = await timed(
        [
            lambda a=a: catalog.snapshot(a.id, a.segment, 73, tag=None, labels={}, guard=Guard())
            for a in actors
        ]
    )
    kinds["read actor"] = await timed([lambda a=a: catalog.actor(a.name) for a in actors])
    kinds["read version"] = await timed(
        [lambda a=a: catalog.version(f"{a.name}@1") for a in actors]
    )
    kinds["read transcript"] = await timed(
        [lambda a=a: catalog.transcript(a.segment, 0, 73) for a in actors]
    )
    kinds["read nearest image"] = await timed(
        [lambda a=a: catalog.nearest_image(a.segment, 73) for a in actors]
    )
    for name, seconds in kinds.items():
        say(name, seconds)


async def groups(catalog: SqlCatalog, rows: int, rounds: int) -> None:
    """Journal groups of `rows` turns, one token each; the second line is the next one queued."""
    turns = []
    for number in range(rows):
        actor = await catalog.create(
            NewActor(
                id=f"act_j{rows}-{number:05}",
                name=f"j{rows}-{number}",
                model="m",
                seed=1,
                labels={},
            ),
            (1,),
        )
        turns.append(
            TurnRecord(
                id=f"turn_j{rows}-{number:05}",
                actor_id=actor.id,
                segment=actor.segment,
                start=1,
                prompt_tokens=0,
                settings={},
                position=1,
                created_at=0,
            )
        )
    await asyncio.gather(*(catalog.begin_turn(turn, (), guard=Guard()) for turn in turns))
    work = [
        [
            JournalEntry(turn_id=t.id, segment=t.segment, position=1 + step, tokens=(step,))
            for t in turns
        ]
        for step in range(rounds)
    ]
    commits = await timed([lambda one=one: catalog.journal(one, incarnation=1) for one in work])
    say(f"journal, {rows} rows", commits)
    bound(rows, commits)
    ends = [
        catalog.end_turn(
            turn.id,
            finish=FinishReason.LENGTH,
            position=1 + rounds,
            text="",
            result=None,
            guard=Guard(),
        )
        for turn in turns
    ]
    say(f"end of {rows} turns, each", await timed([lambda: asyncio.gather(*ends)]), rows)


def floor(folder: Path, rounds: int) -> None:
    """One row a commit through the driver alone."""
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB)")
    wall, cpu = [], []
    for _ in range(rounds):
        begin, spent = time.perf_counter(), time.process_time()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t(data) VALUES (?)", (b"x" * 3000,))
        db.execute("COMMIT")
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - spent)
    db.close()
    say("floor: the driver alone", Times(wall, cpu))


async def main() -> None:
    """Run everything in a fresh folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--journal", action="store_true", help="journal groups only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        catalog = await SqlCatalog.open(Path(name))
        await catalog.claim("bench")
        if not options.journal:
            await lives(catalog, options.rounds)
        for rows in (1, 16, 256, 1024):
            await groups(catalog, rows, options.rounds)
        await catalog.close()
        floor(Path(name), options.rounds)


if __name__ == "__main__":
    asyncio.run(main())
