"""Made-up histories as large as one likes, written straight into the tables, to measure with.

Actors talk, take labelled snapshots, fork at any depth up to `DEPTH`, run rules and blend. A few of
them live very long. Images and tokens are named, not written.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from statevisor.store.db import FILE, begin, finish, migrate, open_engine
from statevisor.store.making import EVERY_LAYER
from statevisor.store.prepared import execute
from statevisor.store.tables import metadata
from statevisor.store.terms import of_labels, of_maker

MODEL = "synthetic"
LAYERS = 4
DEPTH = 31  #: of forks
FORKS = 0.03  #: of all versions
STRIDE = 10  #: tokens between two versions of one life
TICK_US = 1000  #: between any two versions
_LONG_LIVES = 4  #: actors that have a sixteenth of all versions each
_ROWS = 20_000  #: versions written in one go
_BLENDS = """
    INSERT INTO blend SELECT coalesce(l.head, c.segment), c.segment, e.ord, p.segment, p.position
    FROM version_parent e JOIN version c ON c.id = e.child JOIN version p ON p.id = e.parent
    LEFT JOIN lane l ON l.segment = c.segment WHERE e.ord > 0
"""


@dataclass(slots=True, kw_only=True)
class Synthetic:
    """What there is to ask for."""

    folder: Path
    versions: int = 0
    forks: int = 0
    merges: int = 0
    segments: int = 0
    lives: list[int] = field(default_factory=list)  #: how many versions an actor has, by number
    tags: list[str] = field(default_factory=list)
    teams: int = 50  #: values of the label `team`
    agents: int = 20

    def actor(self, number: int) -> str:
        """An actor's id."""
        return f"act_{number:08}"

    def handle(self, dice: random.Random) -> str:
        """Any version, each as likely as any other actor's."""
        number = dice.randrange(len(self.lives))
        return f"{self.actor(number)}@{dice.randrange(self.lives[number])}"


def build(folder: Path, versions: int, *, seed: int = 1, statistics: bool = False) -> Synthetic:
    """Fill a fresh data folder; `statistics` lets the database gather what its planner asks for."""
    engine = open_engine(migrate(folder), connections=1)
    try:
        with engine.connect() as conn:
            begin(conn, write=True)
            made = _Builder(conn, Synthetic(folder=folder), random.Random(seed)).grow(versions)
            finish(conn, commit=True)
            if statistics:
                execute(conn, "ANALYZE")
    finally:
        engine.dispose()
    return made


@dataclass(slots=True)
class _End:
    """Where a segment ends: what a fork may begin at."""

    segment: int
    position: int
    version: int
    depth: int
    start: int
    home: int  #: the segment that the state at its start belongs to
    lane: int

    @property
    def place(self) -> int:
        """The segment under which an image of this end is kept."""
        return self.home if self.position == self.start else self.segment


class _Builder:
    """Grows one life after another."""

    def __init__(self, conn: Connection, made: Synthetic, dice: random.Random) -> None:
        self._conn = conn
        self._made = made
        self._dice = dice
        self._ends: list[_End] = []
        # no row before the one its foreign key names
        order = [table.name for table in metadata.sorted_tables]
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in order}
        self._rows["build"].append((1, "build"))

    def grow(self, versions: int) -> Synthetic:
        """Add lives until there are so many versions."""
        made, short = self._made, max(1, round(0.75 / FORKS) - 1)
        while made.versions < versions:
            long = len(made.lives) < _LONG_LIVES and versions >= 1000
            length = versions // 16 if long else 1 + int(self._dice.expovariate(1 / short))
            above = self._above() if len(made.lives) >= _LONG_LIVES else None
            self._live(min(length, versions - made.versions), above)
            if sum(map(len, self._rows.values())) > _ROWS:
                self._flush()
        self._flush()
        execute(self._conn, _BLENDS)
        return made

    def _above(self) -> _End | None:
        """A place to fork at, for nearly every actor."""
        near = [end for end in self._dice.choices(self._ends, k=4) if end.depth < DEPTH]
        return near[0] if near and self._dice.random() < 0.98 else None

    def _live(self, length: int, above: _End | None) -> None:
        made, dice = self._made, self._dice
        number = len(made.lives)
        here = self._segment(number, above, rooted=False)
        self._made.forks += above is not None
        seq = 0
        while seq < length:
            first = seq == 0
            op = "fork" if above and first else "create" if first else "turn"
            if not first and dice.random() < 0.01:
                here = self._segment(number, here, rooted=True)
                op = "mutate"
            elif not first and dice.random() < 0.05:
                op = "snapshot"
            if op in ("create", "turn"):
                here.position += STRIDE
            self._version(number, seq, op, here)
            seq += 1
        made.lives.append(length)
        self._ends.append(here)
        key = made.actor(number)
        self._rows["actor"].append(
            (
                *(key, f"name-{number}", MODEL, here.segment, here.position, 0, length - 1),
                *(length, length, 1, 1, 1, False, False, "{}", None, None, None, None, 0, 0, None),
            )
        )

    def _segment(self, number: int, above: _End | None, *, rooted: bool) -> _End:
        self._made.segments += 1
        at = self._made.segments
        position, depth = (0, 0) if above is None else (above.position, above.depth + 1)
        place = None if above is None or rooted else above.place
        self._rows["segment"].append(
            (
                at,
                self._made.actor(number),
                None if above is None else above.segment,
                position,
                rooted,
                depth,
                place,
            )
        )
        lane = above.lane if above is not None and rooted else at
        if lane != at:
            self._rows["lane"].append((at, lane))
        digest = f"blake3:{at:064x}"
        self._rows["image"].append((digest, 1, 0, 0, 1, "l", "w", "b", None))
        kept = position if rooted else position + 1
        self._rows["checkpoint"].append((at, kept, digest, 0))
        last = 0 if above is None else above.version
        return _End(at, position, last, depth, position, at if place is None else place, lane)

    def _version(self, number: int, seq: int, op: str, here: _End) -> None:
        made, dice = self._made, self._dice
        made.versions += 1
        key, at = made.versions, made.versions * TICK_US
        labels, agent, rule = {}, None, None
        if op == "snapshot":
            labels = {"team": str(dice.randrange(made.teams))} if dice.random() < 0.5 else {}
            if dice.random() < 0.1:
                made.tags.append(f"tag-{key}")
                self._rows["tag"].append((f"tag-{key}", key, at))
        if op == "mutate":
            agent, rule = f"agent-{dice.randrange(made.agents)}", "decay"
            layer = dice.choice((EVERY_LAYER, *range(LAYERS)))
            self._rows["touched"].append((here.segment, layer, key))
        text = "{}" if not labels else f'{{"team": "{labels["team"]}"}}'
        self._rows["version"].append(
            (
                *(key, made.actor(number), seq, here.segment, here.position, here.place, op),
                *(False, False, 1, text, 1, 1, at),
            )
        )
        if here.version:
            self._rows["version_parent"].append((key, 0, here.version, None))
        if op == "mutate" and dice.random() < 0.3:
            rule = "blend"
            made.merges += 1
            self._rows["version_parent"].append((key, 1, dice.randrange(1, key), 0.5))
        if op == "mutate":
            self._rows["mutation"].append((key, rule, 1, "{}", "{}", agent, None, None))
        for term in (*of_labels(labels), *of_maker(agent, rule)):
            self._rows["version_term"].append((term, at, key))
        here.version = key

    def _flush(self) -> None:
        for name, rows in self._rows.items():
            if rows:
                marks = ",".join("?" * len(rows[0]))
                execute(self._conn, f"INSERT INTO {name} VALUES ({marks})", rows, many=True)
                rows.clear()


class BareCommits:
    """Commits of one small row through the driver alone: the floor under every change."""

    def __init__(self, folder: Path) -> None:
        self._engine = open_engine(folder / "floor.db", connections=1)
        self._conn = self._engine.connect()
        execute(self._conn, "CREATE TABLE floor (id INTEGER PRIMARY KEY, data BLOB)")

    def commit(self) -> None:
        """One transaction, durable when it returns."""
        begin(self._conn, write=True)
        execute(self._conn, "INSERT INTO floor (data) VALUES (?)", (b"x" * 64,))
        finish(self._conn, commit=True)

    def close(self) -> None:
        """Let the file go."""
        self._conn.close()
        self._engine.dispose()


def rows_bytes(folder: Path) -> int:
    """What the rows of a catalog take, whether or not they have left the log beside it."""
    engine = open_engine(folder / FILE, connections=1, read_only=True)
    try:
        with engine.connect() as conn:
            pages = execute(conn, "PRAGMA page_count")[0][0] - _free(conn)
            return int(pages * execute(conn, "PRAGMA page_size")[0][0])
    finally:
        engine.dispose()


def _free(conn: Connection) -> int:
    return int(execute(conn, "PRAGMA freelist_count")[0][0])
