"""Broods on the disk: how many rows there are, what they take, and what their guards are for."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import bindparam, select

from statevisor.hypervisor.catalog_port import (
    ActorQuery,
    Guard,
    NewActor,
    Once,
    Origin,
    VersionQuery,
)
from statevisor.hypervisor.errors import ActorNotFound, StatevisorError, VersionNotFound
from statevisor.hypervisor.ids import Ids, actor_id, nth_seed, own_name
from statevisor.hypervisor.records import ActorRecord, ImageRef
from statevisor.hypervisor.vocab import Op
from statevisor.store import brood_pages, broods, db, halves, laying, sweep, synthetic
from statevisor.store.catalog import SqlCatalog
from statevisor.store.db import FILE, begin, finish, open_engine
from statevisor.store.prepared import Prepared
from statevisor.store.synthetic import rows_bytes
from statevisor.store.tables import actor

TABLES = ("actor", "segment", "version", "version_parent", "brood")
IMAGE = ImageRef(
    digest=f"blake3:{1:064x}",
    nbytes=4096,
    slab=1,
    offset=8192,
    length=8192,
    layout="l",
    weights="w",
    build="b",
)


class Clock:
    """A clock that goes on a little whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def now_us(self) -> int:
        self.now += 10
        return self.now

    def monotonic(self) -> float:
        return 0.0


class Fold:
    """A catalog with a parent that has an image, and ways to look at its rows."""

    def __init__(self, catalog: SqlCatalog, folder: Path, clock: Clock) -> None:
        self.catalog = catalog
        self.folder = folder
        self.clock = clock
        self.ids = Ids(clock)
        self.origin = Origin(segment=1, position=3, handle="parent@0")

    def children(self, count: int) -> list[NewActor]:
        seed = self.ids.seed()
        return [
            NewActor(
                id=key, name=own_name(key), model="rwkv7-1.5b", seed=nth_seed(seed, n), labels={}
            )
            for n, key in enumerate(self.ids.actors(count))
        ]

    async def fork(self, count: int) -> tuple[ActorRecord, ...]:
        return await self.catalog.fork(self.children(count), self.origin)

    def rows(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.folder / FILE)) as rows:
            return {
                name: rows.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES
            }


@pytest.fixture
async def fold(tmp_path: Path) -> AsyncIterator[Fold]:
    clock = Clock()
    catalog = await SqlCatalog.open(tmp_path, now_us=clock.now_us)
    await catalog.claim("test")
    made = Fold(catalog, tmp_path, clock)
    parent = NewActor(id="act_parent", name="parent", model="m", seed=1, labels={})
    await catalog.create(parent, (1, 2, 3))
    await catalog.add_image(1, 3, IMAGE)
    yield made
    await made.catalog.close()


def added(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in TABLES if after[name] != before[name]}


async def test_a_thousand_children_are_one_row_until_they_do_something(fold):
    before = fold.rows()
    made = await fold.fork(1000)
    assert added(before, fold.rows()) == {"brood": 1}
    await fold.catalog.update(made[7].id, pinned=True, guard=Guard())
    four = {"actor": 1, "segment": 1, "version": 1, "version_parent": 1}
    assert added(before, fold.rows()) == {"brood": 1, **four}
    assert await fold.catalog.check() == ()


async def test_reading_writes_nothing(fold):
    made = await fold.fork(3)
    before = fold.rows()
    ask = fold.catalog
    await ask.actor(made[1].id)
    await ask.actors(ActorQuery())
    await ask.lineage("parent@0", "descendants", 9, 9)
    await ask.version(f"{made[1].name}@0")
    await ask.path(made[1].segment, 9)
    await ask.transcript(made[1].segment, 0, 3)
    await ask.search(VersionQuery(op=Op.FORK))
    await ask.check()
    assert fold.rows() == before


async def test_the_row_goes_with_the_last(fold):
    before = fold.rows()
    made = await fold.fork(3)
    for n, child in enumerate(made):
        await fold.catalog.update(child.id, pinned=True, guard=Guard())
        assert fold.rows()["brood"] == int(n < 2)
    four = {"actor": 3, "segment": 3, "version": 3, "version_parent": 3}
    assert added(before, fold.rows()) == four


@pytest.mark.parametrize(("at_once", "most"), [(1000, 1), (1, 128)])
async def test_what_a_fork_takes(fold, at_once, most):
    before = rows_bytes(fold.folder)
    for _ in range(1000 // at_once):
        await fold.fork(at_once)
    each = (rows_bytes(fold.folder) - before) / 1000
    assert each <= most + 2048 / 1000  # a page is the least there is


async def test_what_is_refused_or_of_another_form_gets_rows_of_its_own(fold):
    before = fold.rows()
    plain = NewActor(id="act_1", name="a", model="m", seed=1, labels={})
    await fold.catalog.fork([plain], fold.origin)
    backwards = list(reversed(fold.children(2)))
    await fold.catalog.fork(backwards, fold.origin)
    await fold.catalog.fork(fold.children(1), fold.origin, prompt=(4,))
    assert "brood" not in added(before, fold.rows())
    await fold.fork(2)
    fold.clock.now -= 10**9  # it was set back: order by time and by number would differ
    await fold.fork(2)
    assert added(before, fold.rows())["brood"] == 1
    fold.clock.now += 2 * 10**9
    await fold.fork(2)
    assert added(before, fold.rows())["brood"] == 2
    assert await fold.catalog.check() == ()


async def test_a_key_gives_the_same_children_again(fold):
    children, once = fold.children(3), Once(key="k", request="r")
    made = await fold.catalog.fork(children, fold.origin, once=once)
    kept = await fold.catalog.operation("k")
    assert [one["id"] for one in kept.result["actors"]] == [one.id for one in made]


async def test_very_many_broods_are_searched_by_halves(fold):
    made = [(await fold.fork(count))[0] for count in (1, 3, 1, 1, 7, 2, 1) * 20]
    for child in made[::3]:
        await fold.catalog.update(child.id, pinned=True, guard=Guard())
    engine = open_engine(fold.folder / FILE, connections=1, read_only=True)
    with engine.connect() as conn:
        begin(conn, write=False)
        rows = list(brood_pages.every(conn))
        for column in halves.RISING:
            values = [getattr(row, column) for row in rows]
            assert values == sorted(values)
            for probe in {value + off for value in values for off in (-1, 0, 1)} | {-2, 2**61}:
                below = [row.id for row in rows if getattr(row, column) <= probe]
                assert halves.last_by(conn, column, probe) == (below[-1] if below else 0)
        finish(conn, commit=False)
    engine.dispose()


class TestWithoutItsGuard:
    """What each guard is for: with it taken out, something is lost or two are one."""

    async def test_a_collection_that_forgets_broods_loses_what_children_stand_on(
        self, fold, monkeypatch
    ):
        (child, *_) = await fold.fork(3)
        await fold.catalog.delete("act_parent", guard=Guard())
        for _ in range(2):
            await fold.catalog.sweep(grace_us=-(10**6))
        assert await fold.catalog.nearest_image(child.segment, 3) == (3, IMAGE)

        forgetful = (
            select(actor.c.id)
            .where(actor.c.deleted_us.is_not(None), ~sweep._branched, ~sweep._derived)
            .limit(bindparam("most"))
        )
        monkeypatch.setattr(sweep, "_DEAD", Prepared(forgetful))
        with pytest.raises(StatevisorError, match="FOREIGN KEY"):  # the second guard
            await fold.catalog.sweep(grace_us=-(10**6))
        assert await fold.catalog.nearest_image(child.segment, 3) == (3, IMAGE)

        await fold.catalog.close()
        bare = tuple(one for one in db._PRAGMAS if not one.startswith("foreign_keys"))
        monkeypatch.setattr(db, "_PRAGMAS", (*bare, "foreign_keys=OFF"))
        fold.catalog = await SqlCatalog.open(fold.folder, now_us=fold.clock.now_us)
        await fold.catalog.sweep(grace_us=-(10**6))
        with pytest.raises(ActorNotFound):
            await fold.catalog.actor(child.id)
        assert {"brood", "database"} <= {one.kind for one in await fold.catalog.check()}

    async def test_names_that_are_not_compared_with_broods_are_given_twice(self, fold, monkeypatch):
        (child, *_) = await fold.fork(3)
        monkeypatch.setattr(broods, "clashes", lambda *_: False)
        twice = NewActor(id="act_2", name=child.name, model="m", seed=1, labels={})
        await fold.catalog.create(twice, ())
        assert {one.kind for one in await fold.catalog.check()} == {"brood"}

    async def test_places_that_are_not_counted_are_given_twice(self, fold, monkeypatch):
        def peek(conn: object, tables: Sequence[str], count: int) -> list[int]:
            first = real(conn, tables, count)
            real(conn, tables, -count)
            return first

        real: Callable[..., list[int]] = laying.reserve
        monkeypatch.setattr(laying, "reserve", peek)
        (child, *_) = await fold.fork(3)
        other = NewActor(id="act_2", name="other", model="m", seed=1, labels={})
        assert (await fold.catalog.create(other, ())).segment == child.segment
        assert "brood" in {one.kind for one in await fold.catalog.check()}


async def test_a_brood_of_a_made_up_history_is_found_in_it(tmp_path):
    """Among a thousand versions, and the children of one of their children."""
    synthetic.build(tmp_path, 1000)
    clock = Clock()
    catalog = await SqlCatalog.open(tmp_path, now_us=clock.now_us)
    await catalog.claim("test")
    try:
        start = await catalog.version("act_00000003@5")
        origin = Origin(segment=start.segment, position=start.position, handle="act_00000003@5")
        keys = [actor_id(clock.now + n, 1) for n in range(40)]
        children = [
            NewActor(id=key, name=own_name(key), model="m", seed=1, labels={}) for key in keys
        ]
        made = await catalog.fork(children, origin)
        walk = await catalog.walk("act_00000003@5", "descendants", 500)
        assert {one.handle for one in walk.nodes} >= {f"{one.name}@0" for one in made}
        assert await catalog.is_ancestor("act_00000003@0", f"{made[39].id}@0")
        with pytest.raises(VersionNotFound):
            await catalog.version(f"{made[39].id}@1")
        assert "brood" not in {one.kind for one in await catalog.check()}
    finally:
        await catalog.close()
