"""What gc and fsck ask of a catalog."""

from __future__ import annotations

from dataclasses import replace

from statevisor.hypervisor.catalog_port import Guard, Origin, Rubbish

NOTHING = Rubbish(actors=(), versions=0, tokens=0, orphans=0, orphan_bytes=0, ripe=0, ripe_bytes=0)


async def test_checkpoints_come_by_whole_segments(scene, make_image):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    scene.clock[0] += 5
    for position in (1, 3):
        await scene.catalog.add_image(alice.segment, position, make_image(position))
    await scene.catalog.add_image(bob.segment, 2, make_image(9))
    await scene.catalog.update(bob.id, guard=Guard(), pinned=True)

    first = await scene.catalog.checkpoints(0, 1)
    second = await scene.catalog.checkpoints(alice.segment, 1)

    assert [(one.position, one.image) for one in first] == [(1, make_image(1)), (3, make_image(3))]
    assert {(one.actor_id, one.model, one.pinned, one.created_at) for one in first} == {
        (alice.id, "demo", False, scene.clock[0])
    }
    assert [(one.segment, one.pinned) for one in second] == [(bob.segment, True)]
    assert await scene.catalog.checkpoints(bob.segment, 1) == ()


async def test_a_root_says_so_and_is_not_forgotten(scene):
    actor, version = await scene.mutate(await scene.create("alice"))

    (root,) = await scene.catalog.checkpoints(0, 9)
    await scene.catalog.forget([(root.segment, root.position)])

    assert root.rooted
    assert (await scene.catalog.image_at(actor.segment, 3)).digest == version.digest


async def test_a_forgotten_image_is_freed_by_a_later_sweep(scene, make_image):
    alice = await scene.create("alice")
    await scene.catalog.add_image(alice.segment, 2, make_image(1))

    await scene.catalog.forget([(alice.segment, 2), (alice.segment, 1)])

    assert await scene.catalog.image_at(alice.segment, 2) is None
    assert await scene.catalog.image(make_image(1).digest) is None
    found = await scene.catalog.rubbish(grace_us=10)
    assert (found.orphans, found.orphan_bytes) == (1, make_image(1).length)
    assert await scene.catalog.sweep(grace_us=10) == ()
    scene.clock[0] += 11
    assert await scene.catalog.sweep(grace_us=10) == (make_image(1),)
    assert await scene.catalog.rubbish(grace_us=10) == NOTHING


async def test_an_image_of_two_places_outlives_the_first(scene, make_image):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    for actor in (alice, bob):
        await scene.catalog.add_image(actor.segment, 3, make_image(1))

    await scene.catalog.forget([(alice.segment, 3)])

    assert await scene.catalog.image(make_image(1).digest) == make_image(1)
    assert (await scene.catalog.rubbish(grace_us=10)).orphans == 0


async def test_anchors_are_what_was_named_and_what_actors_begin_at(scene, make_image):
    alice = await scene.create("alice", (1, 2, 3, 4, 5))
    for position in (1, 2, 4, 5):
        await scene.catalog.add_image(alice.segment, position, make_image(position))
    await scene.fork("bob", Origin(segment=alice.segment, position=3, handle=None))
    await scene.catalog.snapshot(alice.id, alice.segment, 5, tag="best", labels={}, guard=Guard())

    assert dict(await scene.catalog.anchors()) == {
        (alice.segment, 2): "base",
        (alice.segment, 5): "named",
    }


async def test_rubbish_is_what_a_sweep_takes(scene, make_image):
    alice = await scene.create("alice")
    bob = await scene.fork("bob", Origin(segment=alice.segment, position=2, handle=None))
    carl = await scene.create("carl", (7, 8))
    for actor in (alice, carl):
        await scene.catalog.add_image(actor.segment, 2, make_image(1))
    await scene.catalog.add_image(alice.segment, 1, make_image(2))
    await scene.catalog.delete(alice.id, guard=Guard())
    assert await scene.catalog.rubbish(grace_us=10) == NOTHING
    await scene.catalog.delete(bob.id, guard=Guard())

    found = await scene.catalog.rubbish(grace_us=10)
    await scene.catalog.sweep(grace_us=10)

    assert found == replace(NOTHING, actors=(alice.id, bob.id), versions=3, tokens=3)
    size = make_image(2).length
    waiting = replace(NOTHING, orphans=1, orphan_bytes=size)
    assert await scene.catalog.rubbish(grace_us=10) == waiting
    scene.clock[0] += 11
    assert await scene.catalog.rubbish(grace_us=10) == replace(waiting, ripe=1, ripe_bytes=size)


async def test_two_that_need_each_other_stay(scene):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    alice, _ = await scene.mutate(alice, "blend", parents=("bob@0",))
    bob, _ = await scene.mutate(bob, "blend", parents=("alice@0",))
    for actor in (alice, bob):
        await scene.catalog.delete(actor.id, guard=Guard())

    assert await scene.catalog.rubbish(grace_us=10) == NOTHING
    await scene.catalog.sweep(grace_us=10)
    assert await scene.catalog.version(f"{alice.id}@0")


async def test_a_healthy_catalog_has_no_findings(scene, make_image):
    alice = await scene.create("alice")
    alice, _ = await scene.turn(alice, (4,), (5, 6))
    turn = await scene.begin(alice, (7,))
    await scene.say(turn, 7, 8, 9)
    await scene.catalog.snapshot(alice.id, alice.segment, 9, tag=None, labels={}, guard=Guard())
    await scene.catalog.add_image(alice.segment, 6, make_image(1))

    assert await scene.catalog.check() == ()
