"""Every kind of damage in the rows is told; nothing is told of a healthy folder."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from statevisor.hypervisor.catalog_port import (
    Finding,
    Guard,
    JournalEntry,
    NewActor,
    Origin,
    Provenance,
)
from statevisor.hypervisor.ids import actor_id, own_name
from statevisor.hypervisor.records import ImageRef, TurnRecord
from statevisor.store.catalog import SqlCatalog
from statevisor.store.db import migrate


def image(number: int) -> ImageRef:
    return ImageRef(
        digest=f"blake3:{number:064x}",
        nbytes=4096,
        slab=1,
        offset=8192 * number,
        length=8192,
        layout="l",
        weights="w",
        build="b",
    )


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an actor mutated twice and one whose turn is open."""
    folder = tmp_path_factory.mktemp("healthy")
    asyncio.run(fill(folder))
    return folder


async def fill(folder: Path) -> None:
    migrate(folder)
    catalog = await SqlCatalog.open(folder)
    incarnation = await catalog.claim("test")
    alice = NewActor(id="act_a", name="alice", model="demo", seed=1, labels={})
    bob = NewActor(id="act_b", name="bob", model="demo", seed=1, labels={})
    await catalog.create(alice, (1, 2, 3))
    await catalog.mutate("act_a", image(1), Provenance(rule="zero"), guard=Guard())
    record = await catalog.create(bob, (1, 2, 3))
    await catalog.add_image(record.segment, 3, image(3))
    turn = TurnRecord(
        id="turn_1",
        actor_id="act_b",
        segment=record.segment,
        start=3,
        prompt_tokens=2,
        settings={},
        position=5,
        created_at=0,
    )
    await catalog.begin_turn(turn, (4, 5), guard=Guard())
    entry = JournalEntry(turn_id="turn_1", segment=record.segment, position=5, tokens=(6, 7))
    await catalog.journal([entry], incarnation=incarnation)
    await catalog.snapshot("act_b", record.segment, 7, tag=None, labels={}, guard=Guard())
    why = Provenance(rule="blend", parents=("bob@0",))
    await catalog.mutate("act_a", image(2), why, guard=Guard())
    await breed(catalog)
    await catalog.close()


async def breed(catalog: SqlCatalog) -> None:
    """Two broods of version `bob@0`, one child of which has rows."""
    bob = await catalog.version("bob@0")
    origin = Origin(segment=bob.segment, position=bob.position, handle="bob@0")
    keys = [actor_id(20 + n, 7) for n in range(4)]
    await catalog.fork([child(key) for key in keys], origin)
    await catalog.update(keys[1], guard=Guard(), pinned=True)
    await catalog.fork([child(actor_id(30, 9), name="eve")], origin)


def child(key: str, name: str | None = None) -> NewActor:
    return NewActor(id=key, name=name or own_name(key), model="demo", seed=3, labels={})


@pytest.fixture
async def damaged(healthy: Path, tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    """A copy to be damaged."""
    shutil.copytree(healthy, tmp_path / "data")
    db = sqlite3.connect(tmp_path / "data" / "catalog.db", isolation_level=None)
    yield db
    db.close()


async def findings(folder: Path) -> tuple[Finding, ...]:
    catalog = await SqlCatalog.open(folder, locked=False)
    try:
        return await catalog.check()
    finally:
        await catalog.close()


async def test_nothing_is_wrong_with_a_healthy_folder(healthy: Path) -> None:
    assert await findings(healthy) == ()


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("segment_parent", "UPDATE segment SET depth = 7 WHERE id = 2"),
        ("segment_parent", "UPDATE segment SET parent = 99 WHERE id = 2"),
        ("segment_stray", "UPDATE segment SET actor_id = 'act_z' WHERE id = 3"),
        ("run_damaged", "UPDATE token_run SET data = x'00' WHERE segment = 1"),
        ("run_gap", "UPDATE token_run SET start = 4 WHERE segment = 3 AND start = 3"),
        ("run_gap", "DELETE FROM token_run WHERE segment = 3 AND start = 0"),
        ("head", "UPDATE actor SET head = 9 WHERE id = 'act_a'"),
        ("head", "UPDATE actor SET head = 0 WHERE id = 'act_a'"),
        ("head", "UPDATE actor SET next_seq = 7 WHERE id = 'act_a'"),
        ("version_place", "UPDATE version SET place = 1 WHERE actor_id = 'act_b'"),
        ("version_parent", "UPDATE version_parent SET parent = child"),
        ("version_term", "UPDATE version SET hidden = 1 WHERE seq = 1 AND actor_id = 'act_a'"),
        ("version_term", "UPDATE version_term SET created_us = 1"),
        ("turn", "UPDATE actor SET turn_id = NULL WHERE id = 'act_b'"),
        ("turn", "UPDATE turn SET finish = 'stop'"),
        ("root_missing", "DELETE FROM checkpoint WHERE segment = 2"),
        ("image_row", "DELETE FROM image WHERE slab = 1"),
        ("image_overlap", 'UPDATE image SET "offset" = 8192'),
        ("image_unnamed", "DELETE FROM checkpoint WHERE segment = 3"),
        ("version_beyond", "UPDATE version SET position = 8 WHERE actor_id = 'act_b'"),
        ("version_beyond", "DELETE FROM token_run WHERE segment = 1"),
        ("image_beyond", "UPDATE checkpoint SET position = 8 WHERE segment = 3"),
        ("actor_position", "UPDATE actor SET position = 9 WHERE id = 'act_a'"),
        ("lane", "UPDATE lane SET head = 2 WHERE segment = 4"),
        ("lane", "DELETE FROM lane WHERE segment = 2"),
        ("lane", "INSERT INTO lane VALUES (3, 1)"),
        ("lane", "UPDATE segment SET parent = 1 WHERE id = 4"),
        ("blend", "DELETE FROM blend"),
        ("blend", "UPDATE blend SET source = 1"),
        ("blend", "UPDATE blend SET head = 2"),
        ("brood", "UPDATE brood SET parent = 99"),
        ("brood", "UPDATE brood SET parent = id"),
        ("brood", "UPDATE brood SET waiting = waiting - 1 WHERE count = 4"),
        ("brood", "UPDATE brood SET hatched = NULL WHERE count = 4"),
        ("brood", "UPDATE brood SET hatched = x'0f' WHERE count = 4"),
        ("brood", "UPDATE brood SET segment = segment - 1 WHERE count = 4"),
        ("brood", "UPDATE brood SET salt = 8 WHERE count = 4"),
        ("brood", "UPDATE brood SET at = 22 WHERE count = 1"),
        ("brood", "UPDATE brood SET created_us = created_us + 99999999 * (count - 1)"),
        ("brood", "UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'version'"),
        ("brood", "UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'segment'"),
        ("brood", "UPDATE actor SET name = 'eve' WHERE name = 'bob'"),
        ("brood", "UPDATE actor SET name = 'actor-0m00000007' WHERE name = 'bob'"),
        ("database", "INSERT INTO tag VALUES ('t', 99, 0)"),
    ],
)
async def test_every_kind_of_damage_is_told(
    damaged: sqlite3.Connection, tmp_path: Path, kind: str, damage: str
) -> None:
    damaged.execute(damage)

    found = await findings(tmp_path / "data")

    assert kind in {one.kind for one in found}
    assert all(one.advice and one.detail for one in found)


async def test_a_flipped_bit_of_the_journal_is_told(
    damaged: sqlite3.Connection, tmp_path: Path
) -> None:
    catalog = await SqlCatalog.open(tmp_path / "data", locked=False)
    (data,) = damaged.execute("SELECT data FROM journal").fetchone()
    flipped = bytes([*data[:-1], data[-1] ^ 1])
    damaged.execute("UPDATE journal SET data = ?", (flipped,))

    found = await catalog.check()
    await catalog.close()

    assert "journal" in {one.kind for one in found}
