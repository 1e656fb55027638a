"""How long questions about a large history take: `python tests/bench/lineage.py --versions N`.

Builds a history of actors that talk, fork, mutate and blend, straight into the tables, lets SQLite
gather its statistics, and asks the catalog as the server does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from statevisor.hypervisor.catalog_port import ActorQuery
from statevisor.store.catalog import SqlCatalog
from statevisor.store.db import migrate

CHAIN = 36  #: versions of one segment, on average
DEPTH = 31  #: of forks


def build(path: Path, versions: int, dice: random.Random) -> tuple[int, int]:
    """Fill a migrated database; returns the numbers of actors and of segments."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("BEGIN")
    rows: dict[str, list[tuple[object, ...]]] = {
        "segment": [],
        "actor": [],
        "version": [],
        "version_parent": [],
        "touched": [],
        "mutation": [],
        "image": [],
        "checkpoint": [],
    }
    segments: list[tuple[int, int, int, int]] = []  # id, depth, end, last version
    plain = (0, 0, None, "{}", 1, 1)  # hidden, drift, build, labels, epoch, owner
    number = 0
    while number < versions:
        key = len(segments) + 1
        shallow = [one for one in dice.choices(segments, k=4) if one[1] < DEPTH] if segments else []
        above = shallow[0] if shallow and dice.random() < 0.9 else None
        start, depth = (above[2], above[1] + 1) if above else (0, 0)
        rooted = above is not None and dice.random() < 0.3
        rows["segment"].append(
            (key, f"act_{key:08}", above[0] if above else None, start, rooted, depth, None)
        )
        chain = 1 + int(dice.expovariate(1 / CHAIN))
        last = above[3] if above else None
        for step in range(chain):
            number += 1
            op = "turn" if step else "mutate" if rooted else "fork" if above else "create"
            place = key if step or rooted or above is None else above[0]
            rows["version"].append(
                (number, f"act_{key:08}", step, key, start + 10 * step, place, op, *plain, number)
            )
            if last is not None:
                rows["version_parent"].append((number, 0, last, "main", None))
            last = number
        first = number - chain + 1
        if rooted:
            rows["touched"].append((key, dice.choice((-1, 0, 1, 2, 3)), first))
            rows["mutation"].append((first, "decay", 1, "{}", "{}", None, None, None))
            if dice.random() < 0.1:
                rows["version_parent"].append((first, 1, dice.randrange(1, first), "merge", 0.5))
        digest = f"blake3:{key:064x}"
        rows["image"].append((digest, 1, 0, 0, 1, "l", "w", "b", None))
        rows["checkpoint"].append((key, start if rooted else start + 1, digest, 0))
        rows["actor"].append(
            (
                *(f"act_{key:08}", f"name-{key}", "m", key, start + 10 * chain, 0, chain - 1),
                *(chain, 1, 1, 1, 1, 0, 0, "{}", None, None, None, None, 0, 0, None),
            )
        )
        segments.append((key, depth, start + 10 * (chain - 1), number))
    for table, found in rows.items():
        marks = ",".join("?" * len(found[0]))
        db.executemany(f"INSERT INTO {table} VALUES ({marks})", found)
    db.execute("COMMIT")
    db.execute("ANALYZE")
    db.close()
    return len(segments), number


async def ask(name: str, rounds: int, call: Callable[[], Awaitable[object]]) -> None:
    """Time one kind of question."""
    wall = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await call()
        wall.append(time.perf_counter() - begin)
    wall.sort()
    marks = "   ".join(
        f"p{p} {wall[min(rounds - 1, p * rounds // 100)] * 1e3:8.3f}" for p in (50, 99)
    )
    sys.stdout.write(f"{name:34} ms: {marks}   mean {statistics.mean(wall) * 1e3:8.3f}\n")


async def main() -> None:
    """Build, then ask everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--versions", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.perf_counter()
        actors, made = build(migrate(folder), options.versions, dice)
        size = (folder / "catalog.db").stat().st_size
        sys.stdout.write(
            f"{made} versions of {actors} actors in {time.perf_counter() - begin:.1f} s, "
            f"{size / made:.0f} bytes a version\n"
        )
        begin = time.perf_counter()
        catalog = await SqlCatalog.open(folder)
        sys.stdout.write(f"opened in {time.perf_counter() - begin:.3f} s\n")
        heads = [f"name-{dice.randrange(1, actors + 1)}@0" for _ in range(2000)]
        segments = [dice.randrange(1, actors + 1) for _ in range(2000)]

        def handle() -> str:
            return dice.choice(heads)

        for kind, call in {
            "actor by name": lambda: catalog.actor(handle().split("@")[0]),
            "version by name": lambda: catalog.version(handle()),
            "nearest image": lambda: catalog.nearest_image(dice.choice(segments), 10**6),
            "version at": lambda: catalog.version_at(dice.choice(segments), 50),
            "blame": lambda: catalog.blame(handle(), dice.randrange(5)),
            "common ancestor": lambda: catalog.common_ancestor(handle(), handle()),
            "last 50 ancestors": lambda: catalog.lineage(handle(), "ancestors", 50, 50),
            "1000 ancestors": lambda: catalog.lineage(handle(), "ancestors", 10**6, 1000),
            "200 descendants": lambda: catalog.lineage(handle(), "descendants", 10**6, 200),
            "page of versions": lambda: catalog.versions(
                f"act_{dice.choice(segments):08}", None, 50
            ),
            "page of actors": lambda: catalog.actors(
                ActorQuery(after=f"act_{dice.choice(segments):08}", limit=50)
            ),
        }.items():
            await ask(kind, options.rounds, call)
        await catalog.close()


if __name__ == "__main__":
    asyncio.run(main())
