from __future__ import annotations

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin
from statevisor.hypervisor.errors import NotFound, VersionNotFound

MINUTE = 60 * 10**6


async def swept(scene, *, twice: bool = True) -> list[str]:
    """Digests freed by sweeps a long time apart."""
    freed = [*await scene.catalog.sweep(grace_us=MINUTE)]
    if twice:
        scene.clock[0] += 2 * MINUTE
        freed += await scene.catalog.sweep(grace_us=MINUTE)
    return [one.digest for one in freed]


async def test_what_lives_is_never_swept(scene, make_image):
    actor = await scene.create("alice")
    actor, _ = await scene.turn(actor, (), (4, 5))
    await scene.catalog.add_image(actor.segment, 5, make_image(1))
    back, _ = await scene.catalog.rollback(
        actor.id,
        Origin(segment=actor.segment, position=3, handle=None),
        seed=None,
        guard=Guard(),
    )

    assert await swept(scene) == []
    assert await scene.catalog.version("alice@1")
    assert await scene.catalog.image_at(actor.segment, 5) == make_image(1)
    assert await scene.tokens(back) == [1, 2, 3]


async def test_a_deleted_actor_goes_with_everything_it_had(scene, make_image):
    actor = await scene.create("alice")
    actor, _ = await scene.turn(actor, (), (4, 5))
    changed, version = await scene.mutate(actor)
    await scene.catalog.add_image(actor.segment, 4, make_image(1))
    await scene.catalog.delete(actor.id, guard=Guard())
    assert (await scene.catalog.version(f"{actor.id}@1")).position == 5

    assert sorted(await swept(scene)) == sorted([make_image(1).digest, version.digest])

    for handle in (f"{actor.id}@0", f"{actor.id}@2"):
        with pytest.raises(VersionNotFound):
            await scene.catalog.version(handle)
    for segment in (actor.segment, changed.segment):
        with pytest.raises(NotFound):
            await scene.catalog.segment(segment)
    assert await scene.catalog.live_images() == ()


async def test_an_import_goes_with_the_tokens_below_it(scene, make_image, make_meta):
    new = scene.new("alice")
    actor, version = await scene.catalog.import_image(new, make_image(1), make_meta(10, (7, 8, 9)))
    below = (await scene.catalog.segment(actor.segment)).parent
    assert below is not None
    await scene.catalog.delete(actor.id, guard=Guard())
    assert (await scene.catalog.rubbish(grace_us=MINUTE)).tokens == 3

    assert await swept(scene) == [version.digest]

    for segment in (actor.segment, below):
        with pytest.raises(NotFound):
            await scene.catalog.segment(segment)


async def test_a_fork_from_below_an_import_keeps_it(scene, make_image, make_meta):
    new = scene.new("alice")
    actor, _ = await scene.catalog.import_image(new, make_image(1), make_meta(3, (7, 8, 9)))
    bob = await scene.fork("bob", Origin(segment=actor.segment, position=0, handle=None))
    await scene.catalog.delete(actor.id, guard=Guard())

    assert (await scene.catalog.rubbish(grace_us=MINUTE)).actors == ()
    assert await swept(scene) == []
    await scene.catalog.delete(bob.id, guard=Guard())
    assert await swept(scene) == [make_image(1).digest]


async def test_descendants_keep_their_ancestors(scene, make_image):
    alice = await scene.create("alice")
    await scene.catalog.add_image(alice.segment, 2, make_image(1))
    bob = await scene.fork("bob", Origin(segment=alice.segment, position=2, handle=None))
    carl = await scene.fork_version("carl", "bob@0")
    await scene.catalog.delete(alice.id, guard=Guard())
    await scene.catalog.delete(bob.id, guard=Guard())

    assert await swept(scene) == []
    assert await scene.tokens(carl) == [1, 2]
    nodes, _, _ = await scene.catalog.lineage("carl@0", "ancestors", 9, 9)
    assert len(nodes) == 4
    await scene.catalog.delete(carl.id, guard=Guard())
    assert await swept(scene) == [make_image(1).digest]
    with pytest.raises(VersionNotFound):
        await scene.catalog.version(f"{alice.id}@0")


async def test_blends_keep_what_they_were_made_of(scene):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    await scene.mutate(alice, "blend", parents=("bob@0",), weights=(0.5,))
    await scene.catalog.delete(bob.id, guard=Guard())
    await swept(scene)

    assert (await scene.catalog.version("alice@1")).parents == ("alice@0", f"{bob.id}@0")
    await scene.catalog.delete(alice.id, guard=Guard())
    await swept(scene)
    with pytest.raises(VersionNotFound):
        await scene.catalog.version(f"{bob.id}@0")


async def test_an_image_shared_with_a_living_place_stays(scene, make_image):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    for actor in (alice, bob):
        await scene.catalog.add_image(actor.segment, 3, make_image(1))
    await scene.catalog.delete(alice.id, guard=Guard())

    assert await swept(scene) == []
    assert await scene.catalog.image(make_image(1).digest) == make_image(1)


async def test_an_image_found_before_a_sweep_may_be_named_after_it(scene, make_image):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    await scene.catalog.add_image(alice.segment, 3, make_image(1))
    found = await scene.catalog.image(make_image(1).digest)
    await scene.catalog.delete(alice.id, guard=Guard())

    assert await swept(scene, twice=False) == []
    assert await scene.catalog.image(found.digest) is None
    assert await scene.catalog.live_images() == (found,)
    await scene.catalog.add_image(bob.segment, 3, found)
    assert await swept(scene) == []
    assert await scene.catalog.image(found.digest) == found


async def test_a_grace_is_waited_for(scene, make_image):
    alice = await scene.create("alice")
    await scene.catalog.add_image(alice.segment, 3, make_image(1))
    await scene.catalog.delete(alice.id, guard=Guard())
    assert await scene.catalog.sweep(grace_us=MINUTE) == ()
    scene.clock[0] += MINUTE
    assert await scene.catalog.sweep(grace_us=MINUTE) == ()
    scene.clock[0] += 1
    assert await scene.catalog.sweep(grace_us=MINUTE) == (make_image(1),)
    assert await scene.catalog.sweep(grace_us=MINUTE) == ()


async def test_the_turn_and_the_key_of_a_swept_actor(scene):
    actor = await scene.create("alice")
    turn = await scene.begin(actor)
    actor, _ = await scene.end(turn, 3, broken=True)
    await scene.catalog.delete(actor.id, guard=Guard())
    await swept(scene)
    with pytest.raises(NotFound):
        await scene.catalog.turn(turn.id)
