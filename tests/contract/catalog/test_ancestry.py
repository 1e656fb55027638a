"""What versions share, on random histories, against the definition worked out the long way."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin
from statevisor.hypervisor.errors import NotFound
from statevisor.hypervisor.records import SegmentRecord, VersionRecord
from statevisor.hypervisor.vocab import Op
from statevisor.store import lanes

STEPS = 40
WAYS = (
    "turn",
    "turn",
    "fork",
    "fork at",
    "blend",
    "blend",
    "rule",
    "rollback",
    "snapshot",
    "stranger",
)


@dataclass
class Known:
    """All versions of a history by age, and its segments."""

    versions: list[VersionRecord]
    segments: Mapping[int, SegmentRecord]

    def past(self, version: VersionRecord) -> dict[int, int]:
        """How far each segment is part of what led to a version."""
        reach: dict[int, int] = {}
        named = {one.handle: one for one in self.versions}
        ways = [(version.segment, version.position)]
        while ways:
            at, top = ways.pop()
            if reach.get(at, -1) >= top:
                continue
            reach[at] = top
            here = self.segments[at]
            if here.parent is not None:
                ways.append((here.parent, min(top, here.position)))
            for one in self.versions:
                if one.segment == at and one.op is Op.MUTATE:
                    ways += [(named[p].segment, named[p].position) for p in one.parents[1:]]
        return reach

    def ancestors(self, version: VersionRecord) -> list[VersionRecord]:
        """It, and what is older and stands on the way to it."""
        past = self.past(version)
        older = self.versions[: self.versions.index(version) + 1]
        return [one for one in older if one.position <= past.get(one.segment, -1)]


async def grown(scene: Any, seed: int) -> Known:
    dice = random.Random(seed)
    actors = [await scene.create("a0")]
    roots = list(actors)
    for step in range(1, STEPS):
        scene.clock[0] += 1
        at = dice.randrange(len(actors))
        actor, other = actors[at], dice.choice(actors)
        below = Origin(segment=actor.segment, position=dice.randint(3, actor.position), handle=None)
        match dice.choice(WAYS):
            case "stranger" if len(roots) < 4:
                roots.append(await scene.create(f"a{step}", (1, 2, 3)))
                actors.append(roots[-1])
            case "fork":
                actors.append(await scene.fork_version(f"a{step}", f"{actor.id}@{actor.head}"))
            case "fork at":
                prompt = (7,) if dice.random() < 0.5 else ()
                actors.append(await scene.fork(f"a{step}", below, prompt))
            case "blend":
                old = f"{actor.id}@{dice.randint(0, actor.head)}"
                parents = (f"{other.id}@{other.head}", old)[: dice.randint(1, 2)]
                actors[at], _ = await scene.mutate(actor, "blend", parents=parents)
            case "rule":
                actors[at], _ = await scene.mutate(actor)
            case "rollback":
                actors[at], _ = await scene.catalog.rollback(
                    actor.id, below, seed=None, guard=Guard()
                )
            case "snapshot":  # of an old place: it is newer than what came of that place
                path = await scene.catalog.path(below.segment, 2 * STEPS)
                owner = next(one.actor_id for one in path if one.position <= below.position)
                await scene.catalog.snapshot(
                    owner, below.segment, below.position, tag=None, labels={}, guard=Guard()
                )
            case _:
                actors[at], _ = await scene.turn(actor, (), (step, step))
    return await known(scene, [root.id for root in roots])


async def known(scene: Any, roots: list[str]) -> Known:
    found: dict[str, VersionRecord] = {}
    for root in roots:
        start: Any = f"{root}@0"
        while start:
            part = await scene.catalog.walk(start, "descendants", 99)
            found |= {node.handle: node for node in part.nodes}
            start = part.rest
    # an anchor is made right before the fork or rollback that needs it
    by_age = sorted(found.values(), key=lambda one: (one.created_at, not one.hidden, one.seq))
    segments: dict[int, SegmentRecord] = {}
    for one in by_age:
        at: int | None = one.segment
        while at is not None and at not in segments:
            segments[at] = await scene.catalog.segment(at)
            at = segments[at].parent
    return Known(by_age, segments)


@pytest.mark.parametrize("seed", range(6))
async def test_what_two_versions_share(scene, seed, monkeypatch):
    monkeypatch.setattr(lanes, "PART", 1 + seed % 3)  # there are more than are read at a time
    monkeypatch.setattr(lanes, "NEAR", 1 + seed % 2)
    history = await grown(scene, seed)
    age = {one.handle: n for n, one in enumerate(history.versions)}
    above = {one.handle: history.ancestors(one) for one in history.versions}
    told, dice = set(), random.Random(seed)
    for _ in range(150):
        a, b = dice.choices(history.versions, k=2)
        shared = [one for one in above[a.handle] if one in above[b.handle]]
        expected = max(
            shared, key=lambda one: (one.segment, one.position, age[one.handle]), default=None
        )

        found = await scene.catalog.common_ancestor(a.handle, b.handle)

        assert found == expected, (a.handle, b.handle)
        assert found == await scene.catalog.common_ancestor(b.handle, a.handle)
        assert await scene.catalog.is_ancestor(a.handle, b.handle) == (a in above[b.handle])
        if found is not None:  # nothing else that both come from comes from it
            assert [one for one in shared if found in above[one.handle]] == [found]
        told.add(None if found is None else found in (a, b))
    assert told >= {True, False}


async def test_what_an_edge_leads_to_comes_from_there(scene):
    history = await grown(scene, 3)
    named = {one.handle: one for one in history.versions}
    for child in history.versions:
        for parent in child.parents:
            assert await scene.catalog.is_ancestor(parent, child.handle)
            assert await scene.catalog.common_ancestor(child.handle, parent) == named[parent]


async def test_the_last_version_of_the_branch_that_began_last(scene):
    """Two that are not kin but by blends share more than one version without a descendant."""
    old = await scene.create("old")
    old, _ = await scene.turn(old, (), (4,))
    new = await scene.create("new")
    old, _ = await scene.turn(old, (), (5,))
    for name in ("a", "b"):
        actor = await scene.create(name)
        await scene.mutate(actor, "blend", parents=("old@2", "new@0"))

    found = await scene.catalog.common_ancestor("a@1", "b@1")

    assert found.handle == f"{new.name}@0"


async def test_a_snapshot_of_an_old_place_does_not_come_first(scene):
    alice = await scene.create("alice")
    alice, _ = await scene.turn(alice, (), (4, 5, 6))
    await scene.catalog.snapshot(alice.id, alice.segment, 4, tag=None, labels={}, guard=Guard())
    for name in ("bob", "carl"):
        await scene.fork_version(name, "alice@1")

    found = await scene.catalog.common_ancestor("bob@0", "carl@0")

    assert found.handle == "alice@1"


async def test_a_blend_brings_the_whole_past_of_what_it_took_in(scene):
    """Also a late snapshot of it, as a fork would: both answers agree."""
    alice = await scene.create("alice")
    alice, _ = await scene.turn(alice, (), (4, 5))
    late = await scene.catalog.snapshot(
        alice.id, alice.segment, 4, tag=None, labels={}, guard=Guard()
    )
    bob = await scene.create("bob")
    await scene.mutate(bob, "blend", parents=("alice@1",))

    assert await scene.catalog.is_ancestor(late.handle, "bob@1")
    assert await scene.catalog.common_ancestor(late.handle, "bob@1") == late


async def test_a_path_comes_in_parts(scene):
    alice = await scene.create("alice")
    for _ in range(3):
        alice, _ = await scene.mutate(alice)
    bob = await scene.fork_version("bob", "alice@1")

    whole = await scene.catalog.path(bob.segment, 9)
    assert [one.id for one in whole] == [bob.segment, *(one.parent for one in whole[:-1])]
    assert whole[-1].parent is None
    assert [one.depth for one in whole] == [2, 1, 0]
    assert whole == tuple([await scene.catalog.segment(one.id) for one in whole])
    assert await scene.catalog.path(bob.segment, 2) == whole[:2]
    with pytest.raises(NotFound):
        await scene.catalog.path(99, 1)
