"""What must be true of a data folder after a crash, by the real code that opens it again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statevisor.hypervisor.catalog_port import ActorQuery
from statevisor.hypervisor.commands import Fork, Generate, Hibernate
from statevisor.hypervisor.errors import ImageCorrupt, StatevisorError, VersionNotFound
from statevisor.hypervisor.records import ActorRecord
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import Tier

from world import World, open_world  # isort: skip  # beside this file
from oracle import Oracle  # isort: skip
from stories import Actor, Allowed, Change, Goal, Stories, Story, fit, length, prompt  # isort: skip

GOAL = Goal(seed=99, temperature=0.9, top_k=0)


@dataclass(slots=True)
class Report:
    """What was found."""

    faults: list[str] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)
    found: dict[str, Story] = field(default_factory=dict)
    ids: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """The few tables that are read past the catalog."""

    parents: Mapping[int, tuple[int | None, int, bool]]  #: segment -> parent, position, rooted
    changes: Mapping[int, Change]  #: by rooted segment
    images: Sequence[tuple[int, int, str]]  #: segment, position, digest
    damage: Sequence[str]

    @classmethod
    def read(cls, folder: Path) -> Rows:
        with closing(sqlite3.connect(folder / "catalog.db")) as db:
            damage = [
                str(row)
                for check in ("integrity_check", "foreign_key_check")
                for row in db.execute(f"PRAGMA {check}")
                if row != ("ok",)
            ]
            parents = {
                key: (parent, position, bool(rooted))
                for key, parent, position, rooted in db.execute(
                    "SELECT id, parent, position, rooted FROM segment"
                )
            }
            parents |= {
                first + n: (parent, position, False)
                for first, count, parent, position in db.execute(
                    "SELECT b.segment, b.count, v.segment, v.position FROM brood b"
                    " JOIN version v ON v.id = b.parent"
                )
                for n in range(count)
            }
            changes = {
                segment: Change(
                    rule,
                    json.dumps(json.loads(params), sort_keys=True),
                    tuple(layers) if (layers := json.loads(select).get("layers")) else None,
                )
                for segment, rule, params, select in db.execute(
                    "SELECT v.segment, m.rule, m.params, m.selection"
                    " FROM mutation m JOIN version v ON v.id = m.version"
                )
            }
            images = db.execute("SELECT segment, position, digest FROM checkpoint").fetchall()
        return cls(parents, changes, images, damage)

    def on_path(self, segment: int | None, end: int) -> list[tuple[int, Change]]:
        """Mutations on the way to a place, oldest first."""
        found: list[tuple[int, Change]] = []
        while segment is not None:
            parent, position, rooted = self.parents[segment]
            if rooted and position <= end:
                found.append((position, self.changes[segment]))
            end = min(end, position)
            segment = parent
        return found[::-1]


async def check(
    folder: Path,
    stories: Stories,
    guest: Any,
    oracle: Oracle,
    *,
    lives: int = 4,
    images: int | None = None,
) -> Report:
    """Open a folder after a crash, recover, and compare everything with what was acknowledged.

    `lives`: actors that go on and are compared with the twin. `images`: most rows that are compared
    with the twin's; all are read.
    """
    report = Report()
    try:
        world = await open_world(folder, guest)
    except StatevisorError as error:
        report.faults.append(f"it does not open again: {error}")
        return report
    try:
        rows = Rows.read(folder)
        report.faults += [f"damage: {one}" for one in rows.damage]
        await Checks(world, stories, rows, oracle, report).run(lives, images)
        world.check()
        report.faults += [f"a drain failed: {one}" for one in (await world.visor.drain()).failed]
    finally:
        await world.close()
    report.faults += oracle.wrong
    oracle.wrong = []
    return report


class Checks:
    """One open folder against its stories."""

    def __init__(
        self, world: World, stories: Stories, rows: Rows, oracle: Oracle, report: Report
    ) -> None:
        self._world = world
        self._catalog = world.catalog
        self._stories = stories
        self._rows = rows
        self._oracle = oracle
        self._report = report

    async def run(self, lives: int, images: int | None) -> None:
        records = {}
        for key in await self._living():
            record = await self._catalog.actor(key)
            records[key] = record
            await self._place(record)
        for actor in self._stories.actors.values():
            await self._actor(actor, records.get(actor.id))
        for turn, position in self._stories.turns.items():
            await self._turn(turn, position)
        await self._images(images)
        for key in [*self._report.found][-lives:] if lives else ():
            try:
                await self._go_on(records[key])
            except StatevisorError as error:
                self._fault(f"{records[key].name} cannot go on: {error.detail}")
        for refusal in self._stories.refused:
            self._fault(f"refused to a life: {refusal}")
        self._report.count["actors"] = len(records)
        self._report.count["turns"] = len(self._stories.turns)
        self._report.count["tokens"] = self._stories.tokens
        self._report.count["acks"] = self._stories.done

    async def _living(self) -> list[str]:
        found: list[str] = []
        more = True
        while more:
            query = ActorQuery(after=found[-1] if found else None, limit=100)
            page, more = await self._catalog.actors(query)
            found += [record.id for record in page]
        return found

    def _fault(self, text: str) -> None:
        self._report.faults.append(text)

    # -- actors ----------------------------------------------------------------------------------
    async def _place(self, record: ActorRecord) -> None:
        """An actor that is there stands where it may stand, on tokens that its twin draws."""
        known = self._stories.actors.get(record.id)
        choices: Sequence[Allowed] = self._stories.born.get(record.name, ())
        if known is not None:
            choices = self._stories.allowed(known)
            if record.seed != known.seed and (known.asked or {}).get("op") != "rollback":
                self._fault(f"{record.name} has the seed {record.seed}, not {known.seed}")
        tokens = await self._tokens(record.segment, record.position)
        changes = self._rows.on_path(record.segment, record.position)
        story = None
        if len(tokens) == record.position:
            story = fit(choices, tokens, changes)
        if story is None:
            told = length(known.story) if known else 0
            self._fault(
                f"{record.name}: {len(tokens)} tokens up to {record.position} and {len(changes)} "
                f"mutations are not what was acknowledged: {told} tokens, "
                f"{(known.asked or {}).get('op') if known else 'being born'} under way"
            )
            return
        self._oracle.row(story)
        self._report.found[record.id] = story
        self._report.ids[record.id] = (record.name, record.seed)

    async def _tokens(self, segment: int, position: int) -> list[int]:
        runs = await self._catalog.transcript(segment, 0, position)
        return [token for run in runs for token in run.tokens]

    async def _actor(self, actor: Actor, record: ActorRecord | None) -> None:
        if actor.deleted:
            if record is not None:
                self._fault(f"{actor.name} was deleted and is back")
            return
        if record is None:
            if (actor.asked or {}).get("op") != "delete":
                self._fault(f"{actor.name} is lost")
            return
        for seq, position in actor.versions.items():
            try:
                version = await self._catalog.version(f"{actor.id}@{seq}")
            except VersionNotFound:
                self._fault(f"{actor.name}@{seq} is lost")
            else:
                if version.position != position:
                    self._fault(f"{version.handle} is at {version.position}, not {position}")
        if (actor.asked or {}).get("op") in ("mutate", "rollback"):
            return  # it may stand on another segment by now
        for position in actor.images:
            if await self._catalog.image_at(record.segment, position) is None:
                self._fault(f"{actor.name}: the image at {position} is lost")

    async def _turn(self, turn: str, position: int) -> None:
        try:
            record = await self._catalog.turn(turn)
        except StatevisorError as error:
            self._fault(f"turn {turn}: {error}")
            return
        if record.finish is None or record.broken or record.position != position:
            self._fault(f"turn {turn} ended at {position}, now it is {record}")

    # -- images ----------------------------------------------------------------------------------
    async def _images(self, most: int | None) -> None:
        """Every named image reads and has the twin's bytes; nothing else is in use."""
        live = {ref.digest: ref for ref in await self._catalog.live_images()}
        used = self._world.images.used_bytes
        if used != sum(ref.length for ref in live.values()):
            self._fault(f"{used} bytes of extents are in use by {len(live)} images")
        for number, (segment, position, digest) in enumerate(self._rows.images):
            row = memoryview(bytearray(self._world.guest.layout.row_bytes))
            try:
                meta = await self._world.images.get(live[digest], row)
            except (ImageCorrupt, KeyError) as error:
                self._fault(f"the image of segment {segment} at {position}: {error!r}")
                continue
            if meta.position != position:
                self._fault(f"the image of segment {segment} at {position} says {meta.position}")
            if most is None or number < most:
                story = await self._story(segment, position)
                if bytes(row) != self._oracle.row(story):
                    self._fault(f"the image of segment {segment} at {position} has wrong bytes")
            self._report.count["images"] += 1

    async def _story(self, segment: int, position: int) -> Story:
        """The story of any place; what was drawn in it is compared where an actor stands on it."""
        tokens = await self._tokens(segment, position)
        changes = self._rows.on_path(segment, position)
        story: Story = ()
        for start, change in changes:
            story = (*story, *prompt(tokens[length(story) : start]), change)
        return story + prompt(tokens[length(story) :])

    # -- lives -----------------------------------------------------------------------------------
    async def _go_on(self, record: ActorRecord) -> None:
        """The actor and a fork of it say what their twin says."""
        story, visor = self._report.found[record.id], self._world.visor
        if not story:
            return
        (child,) = await visor.fork(Fork(actor=record.id, seeds=(GOAL.seed,)))
        await visor.hibernate(Hibernate(actor=record.id, tier=Tier.NVME))
        for key in (record.id, child.record.id):
            stream = await visor.generate(
                Generate(
                    actor=key,
                    max_tokens=4,
                    settings=SamplerSettings(temperature=GOAL.temperature),
                    seed=GOAL.seed,
                    ignore_eos=True,
                )
            )
            said = [event.token async for event in stream]
            if said != self._oracle.goes_on(story, GOAL, 4):
                self._fault(f"{record.name} goes on with {said}, unlike its twin")
            self._report.count["continuations"] += 1
