"""The two catalogs side by side: the same calls give the same answers, errors included."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statevisor.hypervisor.catalog_port import (
    ActorQuery,
    Guard,
    JournalEntry,
    NewActor,
    Once,
    Origin,
    Provenance,
    VersionQuery,
)
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.ids import actor_id, nth_seed, own_name
from statevisor.hypervisor.records import TurnRecord, VersionRecord
from statevisor.hypervisor.vocab import FinishReason, Op
from statevisor.store.catalog import SqlCatalog
from statevisor.store.memory import MemoryCatalog

NAMES = [f"actor-{number}" for number in range(6)]
#: The last ones once cut turns below what was made of them, or took snapshots of another's history.
SEEDS = (*range(16), 22, 23, 79, 100, 139)


class Pair:
    """Two catalogs that are asked the same and must answer the same."""

    def __init__(self, memory: MemoryCatalog, sql: SqlCatalog) -> None:
        self.both = (memory, sql)

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answers = []
        for catalog in self.both:
            try:
                answers.append(await getattr(catalog, method)(*args, **kwargs))
            except StatevisorError as error:
                answers.append(type(error))
        assert answers[0] == answers[1], (method, args, kwargs)
        return answers[0]

    async def walk(self, start: str, direction: str, limit: int) -> None:
        """A whole walk; each catalog has numbers of its own for what is next."""
        begin: list[Any] = [start, start]
        while begin[0]:
            asked = zip(self.both, begin, strict=True)
            parts = [await catalog.walk(one, direction, limit) for catalog, one in asked]
            assert parts[0].nodes == parts[1].nodes, (start, direction)
            assert parts[0].edges == parts[1].edges, (start, direction)
            begin = [part.rest for part in parts]
            assert bool(begin[0]) is bool(begin[1])


class Player:
    """Plays random calls, most of them sensible."""

    def __init__(
        self,
        pair: Pair,
        dice: random.Random,
        clock: list[int],
        make_image: Any,
        make_meta: Any,
    ) -> None:
        self.pair = pair
        self.clock = clock
        self.dice = dice
        self.ids = count(1)
        self.turns: list[TurnRecord] = []
        self.make_image = make_image
        self.make_meta = make_meta

    def new(self) -> NewActor:
        labels = {"k": self.dice.choice("xy")} if self.dice.random() < 0.3 else {}
        number = next(self.ids)
        return NewActor(
            id=f"act_{number:012}{number:08}",
            name=self.dice.choice(NAMES),
            model="m",
            seed=number,
            labels=labels,
        )

    def brood(self) -> list[NewActor]:
        """Children as the hypervisor makes them: all follows from the first."""
        salt, first = self.dice.randrange(3), self.dice.randrange(1000)
        labels = {"k": self.dice.choice("xy")} if self.dice.random() < 0.3 else {}
        alike = self.dice.random() < 0.3
        children = []
        for n in range(self.dice.choice((1, 1, 2, 5))):
            key = actor_id(next(self.ids), salt)
            seed = first if alike else nth_seed(first, n)
            children.append(
                NewActor(id=key, name=own_name(key), model="m", seed=seed, labels=labels)
            )
        return children

    def tokens(self, most: int = 4) -> tuple[int, ...]:
        return tuple(self.dice.randrange(1000) for _ in range(self.dice.randrange(most + 1)))

    def once(self) -> Once | None:
        if self.dice.random() < 0.8:
            return None
        return Once(key=self.dice.choice("abc"), request=self.dice.choice("rrs"))

    def guard(self, actor: Any) -> Guard:
        odd = self.dice.random()
        return Guard(
            epoch=actor.epoch - (odd < 0.05),
            generation=actor.generation - 1 if odd > 0.95 else None,
            once=self.once(),
        )

    async def actor(self) -> Any | None:
        found, _ = await self.pair.ask("actors", ActorQuery(limit=100))
        return self.dice.choice(found) if found else None

    async def origin(self, actor: Any) -> Origin:
        if self.dice.random() < 0.4:
            page = await self.pair.ask("versions", actor.id, None, 100)
            version = self.dice.choice(page[0])
            return Origin(segment=version.segment, position=version.position, handle=version.handle)
        return Origin(
            segment=actor.segment,
            position=self.dice.randrange(actor.position + 2),
            handle=None if self.dice.random() < 0.9 else f"{actor.name}@0",
        )

    async def step(self) -> None:
        actor = await self.actor()
        if actor is None:
            await self.pair.ask("create", self.new(), self.tokens(), once=self.once())
            return
        self.clock[0] += self.dice.choice((0, 0, 1, 1, 1, -1))
        kinds = {
            self.create: 2,
            self.fork: 4,
            self.breed: 4,
            self.begin: 6,
            self.say: 8,
            self.end: 5,
            self.mutate: 2,
            self.rollback: 2,
            self.snapshot: 2,
            self.update: 2,
            self.delete: 1,
            self.quarantine: 0.5,
            self.image: 3,
            self.bring: 0.5,
            self.claim: 0.2,
            self.sweep: 0.7,
            self.forget: 0.7,
        }
        (kind,) = self.dice.choices(list(kinds), list(kinds.values()))
        await kind(actor)

    async def create(self, _: Any) -> None:
        await self.pair.ask("create", self.new(), self.tokens(), once=self.once())

    async def bring(self, _: Any) -> None:
        pending = self.tokens(2)
        meta = self.make_meta(len(pending) + self.dice.randrange(5), pending)
        image = self.make_image(next(self.ids))
        await self.pair.ask("import_image", self.new(), image, meta, agent="a", once=self.once())

    async def fork(self, actor: Any) -> None:
        children = [self.new() for _ in range(self.dice.choice((1, 1, 2)))]
        origin = await self.origin(actor)
        await self.pair.ask("fork", children, origin, prompt=self.tokens(2), once=self.once())

    async def breed(self, actor: Any) -> None:
        origin = await self.origin(actor)
        await self.pair.ask("fork", self.brood(), origin, once=self.once())

    async def begin(self, actor: Any) -> None:
        prompt = self.tokens()
        turn = TurnRecord(
            id=f"turn_{next(self.ids):05}",
            actor_id=actor.id,
            segment=actor.segment,
            start=actor.position,
            prompt_tokens=len(prompt),
            settings={"seed": 1},
            position=actor.position + len(prompt),
            created_at=7,
        )
        await self.pair.ask("begin_turn", turn, prompt, guard=self.guard(actor))

    async def say(self, _: Any) -> None:
        entries = []
        for turn in await self.pair.ask("open_turns"):
            if self.dice.random() < 0.7:
                position = turn.position + (self.dice.random() < 0.03)
                entry = JournalEntry(
                    turn_id=turn.id,
                    segment=turn.segment,
                    position=position,
                    tokens=self.tokens(3),
                )
                entries.append(entry)
        await self.pair.ask("journal", entries, incarnation=self.pair.both[1]._incarnation)

    async def end(self, _: Any) -> None:
        turns = await self.pair.ask("open_turns")
        if turns:
            turn = self.dice.choice(turns)
            cut = self.dice.choice((0, 0, 0, 0, 1, 2))
            actor = await self.pair.ask("actor", turn.actor_id)
            await self.pair.ask(
                "end_turn",
                turn.id,
                finish=FinishReason.STOP,
                position=turn.position - cut,
                text="t",
                result=self.dice.choice((None, {"r": 1})),
                guard=replace(self.guard(actor), once=None),
                broken=self.dice.random() < 0.3,
            )

    async def mutate(self, actor: Any) -> None:
        other = await self.actor()
        why = Provenance(
            rule="blend",
            params={"a": 1},
            select=self.dice.choice((None, {"layers": [0, 2]}, {"layers": [1]})),
            parents=self.dice.choice(((), (f"{other.name}@{other.head}",))),
            weights=(0.5,),
        )
        image = self.make_image(next(self.ids))
        await self.pair.ask("mutate", actor.id, image, why, guard=self.guard(actor))

    async def rollback(self, actor: Any) -> None:
        origin = await self.origin(actor)
        seed = self.dice.choice((None, 5))
        await self.pair.ask("rollback", actor.id, origin, seed=seed, guard=self.guard(actor))

    async def snapshot(self, actor: Any) -> None:
        origin = await self.origin(actor)
        await self.pair.ask(
            "snapshot",
            actor.id,
            origin.segment,
            origin.position,
            tag=self.dice.choice((None, "t", "u")),
            labels={"l": "1"},
            guard=self.guard(actor),
        )

    async def update(self, actor: Any) -> None:
        changes = {
            "name": self.dice.choice((*NAMES, own_name(actor_id(3, 1)))),
            "labels": {"k": "z"},
            "pinned": self.dice.random() < 0.5,
            "ttl_s": self.dice.choice((0, 9)),
            "seed": 3,
            "drift": self.dice.random() < 0.2,
        }
        chosen = {key: one for key, one in changes.items() if self.dice.random() < 0.4}
        await self.pair.ask("update", actor.id, guard=self.guard(actor), **chosen)

    async def delete(self, actor: Any) -> None:
        await self.pair.ask("delete", actor.id, guard=self.guard(actor))

    async def quarantine(self, actor: Any) -> None:
        reason = self.dice.choice((None, "bad"))
        await self.pair.ask("quarantine", actor.id, reason, guard=self.guard(actor))

    async def image(self, actor: Any) -> None:
        place = (actor.segment, self.dice.randrange(actor.position + 1))
        await self.pair.ask("add_image", *place, self.make_image(next(self.ids)))

    async def claim(self, _: Any) -> None:
        await self.pair.ask("claim", "again")

    async def sweep(self, _: Any) -> None:
        await self.pair.ask("sweep", grace_us=self.dice.choice((-1, 0)))

    async def forget(self, _: Any) -> None:
        found = await self.pair.ask("checkpoints", 0, 50)
        if found:
            one = self.dice.choice(found)
            await self.pair.ask("forget", [(one.segment, one.position)])

    async def look(self) -> None:
        """Ask both about everything there is."""
        ask = self.pair.ask
        await ask("rubbish", grace_us=self.dice.choice((-1, 0, 1)))
        await ask("anchors")
        await ask("checkpoints", self.dice.choice((0, 0, 5)), self.dice.choice((2, 50)))
        assert await ask("check") == ()
        await ask("live_images")
        await ask("count_actors")
        for key in "abc":
            await ask("operation", key)
        found, _ = await ask("actors", ActorQuery(limit=500))
        await ask("actors", ActorQuery(label=("k", None), q="ACTOR-", limit=3))
        await ask("actors", ActorQuery(label=("k", "y"), limit=3))
        await ask("recent", 10)
        some = frozenset(one.id for one in found if self.dice.random() < 0.5)
        await ask("actors", ActorQuery(ids=some, limit=5))
        after = None
        while page := (await ask("actors", ActorQuery(exclude=some, after=after, limit=4)))[0]:
            after = page[-1].id
        await self.search()
        handles = []
        for actor in found:
            assert await ask("actor", actor.id) == await ask("actor", actor.name)
            for at_us in (0, actor.created_at, actor.updated_at):
                await ask("as_of", actor.id, at_us)
            page, _ = await ask("versions", actor.id, None, 100)
            handles += [version.handle for version in page]
            for position in range(actor.position + 1):
                await ask("nearest_image", actor.segment, position)
                await ask("image_at", actor.segment, position)
                await ask("version_at", actor.segment, position)
            middle = actor.position // 2
            await ask("transcript", actor.segment, 0, actor.position + 5)
            await ask("transcript", actor.segment, middle, middle + 2)
            await ask("lineage", f"{actor.name}@{actor.head}", "both", 50, 500)
            await ask("lineage", f"{actor.name}@0", "descendants", 2, 5)
        for handle in (*handles, "t", "u"):
            if type(await ask("version", handle)) is not VersionRecord:
                continue  # a tag that nobody gave
            await self.pair.walk(handle, "ancestors", 5)
            await self.pair.walk(handle, "descendants", self.dice.choice((2, 7, 100)))
            await ask("blame", handle, self.dice.randrange(3))
        for _ in range(60):
            await ask("common_ancestor", self.dice.choice(handles), self.dice.choice(handles))
            await ask("is_ancestor", self.dice.choice(handles), self.dice.choice(handles))

    async def search(self) -> None:
        """Page through all versions, and through those of some kinds and times."""
        low, high = sorted(self.dice.sample(range(self.clock[0] + 2), 2))
        for given in ({}, {"op": Op.FORK}, {"since_us": low, "until_us": high}, {"op": Op.TURN}):
            after = None
            while True:
                query = VersionQuery(after=after, limit=self.dice.choice((1, 3, 20)), **given)
                page, more = await self.pair.ask("search", query)
                if not more:
                    break
                after = page[-1].handle


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_lives(seed, tmp_path, migrated, make_image, make_meta, check_rows):
    shutil.copy(migrated, tmp_path)

    clock = [5]

    def now_us() -> int:
        return clock[0]

    sql = await SqlCatalog.open(Path(tmp_path), now_us=now_us)
    pair = Pair(MemoryCatalog(now_us=now_us), sql)
    player = Player(pair, random.Random(seed), clock, make_image, make_meta)
    await pair.ask("claim", "test")
    for number in range(150):
        if number == 100:  # what is open survives a restart
            await sql.close()
            sql = await SqlCatalog.open(Path(tmp_path), now_us=now_us)
            pair.both = (pair.both[0], sql)
        await player.step()
    await player.look()
    await sql.close()
    check_rows(tmp_path / "catalog.db")
