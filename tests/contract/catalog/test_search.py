from __future__ import annotations

import random

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin, VersionQuery
from statevisor.hypervisor.errors import ActorNotFound, VersionNotFound
from statevisor.hypervisor.vocab import Op


async def found(scene, **asked) -> list[str]:
    """Handles of all answers, read in pages of two, each held against one page of all."""
    whole, more = await scene.catalog.search(VersionQuery(limit=999, **asked))
    assert not more
    paged, after, more = [], None, True
    while more:
        page, more = await scene.catalog.search(VersionQuery(limit=2, after=after, **asked))
        assert len(page) == 2 or not more
        paged += page
        after = page[-1].handle if page else after
    assert tuple(paged) == whole
    return [one.handle for one in whole]


async def snapshot(scene, actor, tag=None, **labels):
    return await scene.catalog.snapshot(
        actor.id, actor.segment, actor.position, tag=tag, labels=labels, guard=Guard()
    )


async def lives(scene):
    """alice 0 create, 1 snapshot, 2 turn, 3 mutate, 4 snapshot; bob 0 fork, 1 mutate."""
    clock = scene.clock
    alice = await scene.create("alice")
    clock[0] = 2_000_000
    await snapshot(scene, alice, tag="first", team="a", use="demo")
    alice, _ = await scene.turn(alice, (), (4,))
    clock[0] = 3_000_000
    alice, _ = await scene.mutate(alice, "decay", agent="ann")
    bob = await scene.fork_version("bob", "alice@1")
    clock[0] = 4_000_000
    await snapshot(scene, alice, tag="second", team="b")
    bob, _ = await scene.mutate(bob, "zero", agent="ann")
    return alice, bob


async def test_versions_come_in_the_order_of_their_creation(scene):
    await lives(scene)

    assert await found(scene) == [
        *("alice@0", "alice@1", "alice@2", "alice@3", "bob@0", "alice@4", "bob@1")
    ]
    assert await found(scene, op=Op.SNAPSHOT) == ["alice@1", "alice@4"]
    assert await found(scene, op=Op.IMPORT) == []


async def test_labels_agents_and_rules_find_their_versions(scene):
    await lives(scene)

    assert await found(scene, label=("team", None)) == ["alice@1", "alice@4"]
    assert await found(scene, label=("team", "b")) == ["alice@4"]
    assert await found(scene, label=("team", "")) == []
    assert await found(scene, agent="ann") == ["alice@3", "bob@1"]
    assert await found(scene, rule="zero") == ["bob@1"]
    assert await found(scene, agent="ann", rule="decay") == ["alice@3"]
    assert await found(scene, agent="ann", op=Op.MUTATE, rule="zero") == ["bob@1"]
    assert await found(scene, agent="ann", op=Op.FORK) == []


async def test_times_are_from_one_up_to_but_not_at_another(scene):
    await lives(scene)

    assert await found(scene, since_us=3_000_000, until_us=4_000_000) == ["alice@3", "bob@0"]
    assert await found(scene, since_us=4_000_001) == []
    assert await found(scene, until_us=2_000_000) == ["alice@0"]
    assert await found(scene, label=("team", None), since_us=2_000_001) == ["alice@4"]
    assert await found(scene, op=Op.MUTATE, until_us=4_000_000) == ["alice@3"]


async def test_a_tag_finds_the_version_it_is_on(scene):
    alice, _ = await lives(scene)

    assert await found(scene, tag="first") == ["alice@1"]
    assert await found(scene, tag="nobody") == []
    assert await found(scene, tag="second", label=("team", "a")) == []
    await snapshot(scene, alice, tag="first")
    assert await found(scene, tag="first") == ["alice@5"]
    page, more = await scene.catalog.search(VersionQuery(tag="first", after="alice@5"))
    assert (page, more) == ((), False)


async def test_anchors_are_not_found(scene):
    alice = await scene.create("alice", (1, 2, 3))
    await scene.fork("bob", Origin(segment=alice.segment, position=2, handle=None))

    assert await found(scene) == ["alice@0", "bob@0"]


async def test_a_page_behind_nothing_is_refused(scene):
    with pytest.raises(VersionNotFound):
        await scene.catalog.search(VersionQuery(after="nobody@0"))


async def test_versions_of_swept_actors_are_gone_and_those_of_deleted_ones_are_not(scene):
    alice, _ = await lives(scene)
    carl = await scene.create("carl")
    await snapshot(scene, carl, tag="third", team="a")
    await scene.catalog.delete(carl.id, guard=Guard())
    await scene.catalog.delete(alice.id, guard=Guard())
    assert await found(scene, label=("team", "a")) == [f"{alice.id}@1", f"{carl.id}@1"]

    await scene.catalog.sweep(grace_us=0)

    assert await found(scene, label=("team", "a")) == [f"{alice.id}@1"]
    assert await found(scene, tag="first") == []


# -- as of ---------------------------------------------------------------------------------------


async def head_at(scene, actor, at_us: int) -> str | None:
    version = await scene.catalog.as_of(actor.id, at_us)
    return None if version is None else version.handle


async def test_the_head_at_a_time(scene):
    alice, bob = await lives(scene)

    assert await head_at(scene, alice, 999_999) is None
    assert await head_at(scene, alice, 1_000_000) == "alice@0"
    assert await head_at(scene, alice, 2_000_000) == "alice@2"  # not the snapshot
    assert await head_at(scene, alice, 2_999_999) == "alice@2"
    assert await head_at(scene, alice, 9_000_000) == "alice@3"
    assert await head_at(scene, bob, 2_999_999) is None
    assert await head_at(scene, bob, 4_000_000) == "bob@1"
    await scene.catalog.delete(alice.id, guard=Guard())
    with pytest.raises(ActorNotFound):
        await head_at(scene, alice, 1_000_000)


async def test_every_head_of_a_long_life_is_found_at_its_time(scene):
    alice = await scene.create("alice")
    dice, heads = random.Random(3), {}
    for _ in range(40):
        scene.clock[0] += dice.choice((0, 0, 1, 10))
        if dice.random() < 0.4:
            await snapshot(scene, alice)
        else:
            alice, made = await scene.turn(alice, (), (5,))
            heads[scene.clock[0]] = made.handle
    for at, handle in heads.items():
        assert await head_at(scene, alice, at) == handle


async def test_a_clock_that_is_set_back_does_not_make_a_life_run_backwards(scene):
    scene.clock[0] = 5_000_000
    alice = await scene.create("alice")
    scene.clock[0] = 1_000_000
    alice, made = await scene.turn(alice, (), (5,))
    bob = await scene.create("bob")

    assert made.created_at == 5_000_000
    assert await head_at(scene, alice, 5_000_000) == "alice@1"
    assert await head_at(scene, alice, 4_999_999) is None
    assert await head_at(scene, bob, 1_000_000) == "bob@0"
    assert await found(scene) == ["bob@0", "alice@0", "alice@1"]
