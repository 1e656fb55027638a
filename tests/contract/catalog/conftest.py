"""Both catalogs under one name, and short ways to bring actors about in them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from statevisor.hypervisor.catalog_port import (
    Catalog,
    Guard,
    JournalEntry,
    NewActor,
    Once,
    Origin,
    Provenance,
)
from statevisor.hypervisor.ids import actor_id, nth_seed, own_name
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.hypervisor.records import ActorRecord, ImageRef, TurnRecord, VersionRecord
from statevisor.hypervisor.vocab import FinishReason
from statevisor.store import rowcheck
from statevisor.store.catalog import SqlCatalog
from statevisor.store.db import migrate
from statevisor.store.memory import MemoryCatalog

LAYOUT = Layout(families=(StateFamily(name="wkv", shape=(2, 4), dtype="F32"),))


@dataclass
class Scene:
    """A catalog with the steps that most tests begin with."""

    catalog: Catalog
    incarnation: int
    clock: list[int]
    made: int = field(default=0)
    folder: Path | None = None  #: where the catalog's file is, if it has one

    def new(self, name: str, **changes: Any) -> NewActor:
        self.made += 1
        values = {
            "id": f"act_{self.made:012}{self.made:08}",
            "model": "demo",
            "seed": self.made,
            "labels": {},
        }
        return NewActor(name=name, **(values | changes))

    async def create(self, name: str, prompt: Sequence[int] = (1, 2, 3)) -> ActorRecord:
        return await self.catalog.create(self.new(name), prompt)

    async def begin(
        self, actor: ActorRecord, prompt: Sequence[int] = (), once: Once | None = None
    ) -> TurnRecord:
        self.made += 1
        turn = TurnRecord(
            id=f"turn_{self.made:06}",
            actor_id=actor.id,
            segment=actor.segment,
            start=actor.position,
            prompt_tokens=len(prompt),
            settings={"temperature": 0.0, "seed": 5},
            position=actor.position + len(prompt),
            created_at=self.clock[0],
        )
        await self.catalog.begin_turn(turn, prompt, guard=Guard(epoch=actor.epoch, once=once))
        return turn

    async def say(self, turn: TurnRecord, position: int, *tokens: int) -> None:
        entry = JournalEntry(
            turn_id=turn.id, segment=turn.segment, position=position, tokens=tokens
        )
        await self.catalog.journal([entry], incarnation=self.incarnation)

    async def end(
        self, turn: TurnRecord, position: int, **changes: Any
    ) -> tuple[ActorRecord, VersionRecord]:
        values: dict[str, Any] = {
            "finish": FinishReason.LENGTH,
            "text": "said",
            "result": None,
            "guard": Guard(),
        }
        actor = await self.catalog.end_turn(turn.id, position=position, **(values | changes))
        return actor, await self.catalog.version(f"{actor.id}@{actor.head}")

    async def turn(
        self, actor: ActorRecord, prompt: Sequence[int] = (), said: Sequence[int] = ()
    ) -> tuple[ActorRecord, VersionRecord]:
        """A whole turn."""
        turn = await self.begin(actor, prompt)
        position = actor.position + len(prompt)
        if said:
            await self.say(turn, position, *said)
        return await self.end(turn, position + len(said))

    async def fork(self, name: str, origin: Origin, prompt: Sequence[int] = ()) -> ActorRecord:
        return (await self.catalog.fork([self.new(name)], origin, prompt=prompt))[0]

    def brood(self, count: int, seed: int = 5, **changes: Any) -> list[NewActor]:
        """Children as the hypervisor makes them: ids, names and seeds follow from the first's."""
        self.made += count
        first = 1_000_000 + self.made * 100
        keys = [actor_id(first + n, self.made) for n in range(count)]
        return [
            self.new(own_name(key), **({"id": key, "seed": nth_seed(seed, n)} | changes))
            for n, key in enumerate(keys)
        ]

    async def breed(self, count: int, origin: Origin, **changes: Any) -> tuple[ActorRecord, ...]:
        return await self.catalog.fork(self.brood(count, **changes), origin)

    async def restart(self) -> None:
        """Close the catalog and open it again, where there is something to open."""
        if self.folder is not None:
            await self.catalog.close()
            self.catalog = await SqlCatalog.open(self.folder, now_us=lambda: self.clock[0])

    async def fork_version(self, name: str, handle: str) -> ActorRecord:
        version = await self.catalog.version(handle)
        origin = Origin(segment=version.segment, position=version.position, handle=handle)
        return await self.fork(name, origin)

    async def mutate(
        self, actor: ActorRecord, rule: str = "decay", **why: Any
    ) -> tuple[ActorRecord, VersionRecord]:
        self.made += 1
        provenance = Provenance(rule=rule, rule_version=1, **why)
        return await self.catalog.mutate(actor.id, image(self.made), provenance, guard=Guard())

    async def tokens(self, actor: ActorRecord) -> list[int]:
        """All tokens of an actor's transcript."""
        runs = await self.catalog.transcript(actor.segment, 0, actor.position)
        return [token for run in runs for token in run.tokens]


def image(number: int, **changes: Any) -> ImageRef:
    values = {
        "digest": f"blake3:{number:064x}",
        "nbytes": 4096,
        "slab": 0,
        "offset": 8192 * number,
        "length": 8192,
        "layout": "layout",
        "weights": "weights",
        "build": "build-of-image",
    }
    return ImageRef(**(values | changes))


def meta(position: int, pending: tuple[int, ...]) -> ImageMeta:
    prints = Fingerprints(layout=LAYOUT.fingerprint, weights="weights", build="build-of-image")
    return ImageMeta(
        layout=LAYOUT,
        fingerprints=prints,
        position=position,
        absorbed=position - len(pending),
        pending=pending,
    )


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the newest schema, to be copied."""
    return migrate(tmp_path_factory.mktemp("migrated"))


@pytest.fixture(params=["memory", "sql"])
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path
) -> AsyncIterator[Scene]:
    """A claimed catalog; afterwards its rows are checked."""
    clock = [1_000_000]
    catalog: Catalog
    if request.param == "memory":
        catalog = MemoryCatalog(now_us=lambda: clock[0])
    else:
        shutil.copy(migrated, tmp_path)
        catalog = await SqlCatalog.open(tmp_path, now_us=lambda: clock[0])
    incarnation = await catalog.claim("test")
    folder = tmp_path if request.param == "sql" else None
    made = Scene(catalog, incarnation, clock, folder=folder)
    yield made
    await made.catalog.close()
    if request.param == "sql":
        _check_rows(tmp_path / "catalog.db")


@pytest.fixture
def make_image() -> Callable[..., ImageRef]:
    return image


@pytest.fixture
def make_meta() -> Callable[[int, tuple[int, ...]], ImageMeta]:
    return meta


#: Each query finds rows that must not be there.
FAULTS = {
    "a parent is younger than its child": "SELECT * FROM version_parent WHERE parent >= child",
    "a version stands on another actor's segment": """
        SELECT v.id FROM version v JOIN segment s ON s.id = v.segment
        WHERE s.actor_id <> v.actor_id""",
    "an actor's parent does not exist": """
        SELECT id FROM actor WHERE parent IS NOT NULL AND parent NOT IN (SELECT id FROM version)""",
    "an actor's open turn does not exist": """
        SELECT id FROM actor WHERE turn_id IS NOT NULL
        AND turn_id NOT IN (SELECT id FROM turn WHERE finish IS NULL)""",
    "an open turn is not its actor's": """
        SELECT id FROM turn t WHERE finish IS NULL
        AND NOT EXISTS (SELECT 1 FROM actor a WHERE a.id = t.actor_id AND a.turn_id = t.id)""",
    "an actor's head does not exist": """
        SELECT id FROM actor a WHERE NOT EXISTS
        (SELECT 1 FROM version v WHERE v.actor_id = a.id AND v.seq = a.head)""",
    "runs overlap": """
        SELECT a.segment FROM token_run a JOIN token_run b
        ON a.segment = b.segment AND a.start < b.start AND a.start + a.count > b.start""",
    "a run is empty or not as long as it says": """
        SELECT segment FROM token_run WHERE count < 1 OR length(data) != 4 * count + 8""",
    "a segment begins beyond its parent's end": """
        SELECT s.id FROM segment s JOIN segment p ON p.id = s.parent WHERE s.position > max(
            p.position,
            coalesce((SELECT max(start + count) FROM token_run WHERE segment = p.id), 0)) """,
}


def _check_rows(path: Path) -> None:
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        for fault, query in FAULTS.items():
            assert db.execute(query).fetchall() == [], fault
        for kind, query, *_ in rowcheck._RULES:
            if kind in ("head", "version_place"):
                assert db.execute(query).fetchall() == [], kind
    finally:
        db.close()


@pytest.fixture
def check_rows() -> Callable[[Path], None]:
    return _check_rows
