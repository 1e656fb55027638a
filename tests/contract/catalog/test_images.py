from __future__ import annotations

from dataclasses import replace

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin
from statevisor.hypervisor.errors import ActorExists, NotFound, VersionNotFound
from statevisor.hypervisor.vocab import Op


async def test_an_image_belongs_to_its_place(scene, make_image):
    made = await scene.create("alice")
    actor, _ = await scene.turn(made, (4,), (5, 6))
    await scene.catalog.add_image(actor.segment, 6, make_image(1))

    assert await scene.catalog.image_at(actor.segment, 6) == make_image(1)
    assert await scene.catalog.image_at(actor.segment, 5) is None
    assert await scene.catalog.image(make_image(1).digest) == make_image(1)
    assert await scene.catalog.image("blake3:none") is None
    version = await scene.catalog.version("alice@1")
    assert (version.digest, version.nbytes) == (make_image(1).digest, 4096)
    assert await scene.catalog.live_images() == (make_image(1),)
    assert (await scene.catalog.actor("alice")).generation == actor.generation


async def test_the_nearest_image_is_the_last_one_on_the_path(scene, make_image):
    actor = await scene.create("alice", ())
    for token in range(5):
        actor, _ = await scene.turn(actor, (), (token, token))
    for position in (2, 6, 10):
        await scene.catalog.add_image(actor.segment, position, make_image(position))
    child = await scene.fork("bob", Origin(segment=actor.segment, position=7, handle=None))
    child, _ = await scene.turn(child, (), (9, 9))
    await scene.catalog.add_image(child.segment, 9, make_image(90))

    async def nearest(segment: int, position: int) -> int | None:
        found = await scene.catalog.nearest_image(segment, position)
        return None if found is None else found[0]

    assert [await nearest(actor.segment, p) for p in (0, 1, 2, 5, 6, 9, 10)] == [
        None,
        None,
        2,
        2,
        6,
        6,
        10,
    ]
    assert [await nearest(child.segment, p) for p in (1, 5, 6, 7, 8, 9)] == [None, 2, 6, 6, 6, 9]
    assert (await scene.catalog.nearest_image(child.segment, 9))[1] == make_image(90)
    with pytest.raises(NotFound):
        await scene.catalog.nearest_image(99, 0)


async def test_forks_share_the_image_of_their_origin(scene, make_image):
    made = await scene.create("alice")
    child = await scene.fork("bob", Origin(segment=made.segment, position=3, handle="alice@0"))
    twin = await scene.fork("carl", Origin(segment=child.segment, position=3, handle="bob@0"))
    await scene.catalog.add_image(twin.segment, 3, make_image(1))

    for handle in ("alice@0", "bob@0", "carl@0"):
        assert (await scene.catalog.version(handle)).digest == make_image(1).digest
    for actor in (made, child, twin):
        assert await scene.catalog.image_at(actor.segment, 3) == make_image(1)
        assert await scene.catalog.nearest_image(actor.segment, 3) == (3, make_image(1))


async def test_no_replay_crosses_a_rooted_segment(scene, make_image):
    made = await scene.create("alice", ())
    actor, _ = await scene.turn(made, (), (1, 2))
    await scene.catalog.add_image(actor.segment, 2, make_image(1))
    changed, version = await scene.mutate(actor)
    after, _ = await scene.turn(changed, (), (3,))

    assert (await scene.catalog.nearest_image(after.segment, 3))[1].digest == version.digest
    assert (await scene.catalog.nearest_image(after.segment, 2))[1].digest == version.digest
    assert await scene.catalog.nearest_image(after.segment, 1) is None
    child = await scene.fork("bob", Origin(segment=after.segment, position=2, handle=None))
    assert child.parent == version.handle
    assert (await scene.catalog.nearest_image(child.segment, 2))[1].digest == version.digest
    assert (await scene.catalog.version("bob@0")).digest == version.digest


async def test_the_first_image_of_a_place_stays_and_its_newest_bytes_count(scene, make_image):
    made = await scene.create("alice")
    await scene.catalog.add_image(made.segment, 3, make_image(1))
    await scene.catalog.add_image(made.segment, 3, make_image(2))
    assert await scene.catalog.image_at(made.segment, 3) == make_image(1)

    moved = replace(make_image(1), slab=7, offset=0)
    await scene.catalog.add_image(made.segment, 3, moved)

    assert await scene.catalog.image_at(made.segment, 3) == moved
    assert await scene.catalog.live_images() == (moved,)


async def test_a_place_tells_its_image_or_what_one_would_have_to_say(scene, make_image):
    made = await scene.create("alice")
    actor, _ = await scene.turn(made, (4,), (5, 6))
    ask = scene.catalog.standing
    assert await ask(actor.segment, 6, 5) == (None, (6,))
    assert await ask(actor.segment, 6, 3) == (None, (4, 5, 6))
    assert await ask(actor.segment, 6, 6) == (None, ())
    await scene.catalog.add_image(actor.segment, 6, make_image(1))
    assert await ask(actor.segment, 6, 5) == (make_image(1), ())
    assert await ask(actor.segment, 5, 4) == (None, (5,))
    with pytest.raises(NotFound):
        await ask(99, 6, 5)


async def test_what_is_kept_tells_which_image_a_place_has(scene, make_image):
    made = await scene.create("alice")
    keep = scene.catalog.keep_image
    first = make_image(1)
    assert await keep(made.segment, 2, first) == first
    assert await keep(made.segment, 2, first) == first
    again = replace(first, slab=7, offset=0)
    assert await keep(made.segment, 3, again) == first, "its bytes are there already"
    assert await keep(made.segment, 3, make_image(2)) == first, "the first one named stays"

    assert await scene.catalog.image_at(made.segment, 2) == first
    assert await scene.catalog.image_at(made.segment, 3) == first
    assert await scene.catalog.live_images() == (first,)


async def test_bytes_that_are_about_to_be_freed_are_not_kept(scene, make_image):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    await scene.catalog.keep_image(alice.segment, 3, make_image(1))
    await scene.catalog.delete(alice.id, guard=Guard())
    assert await scene.catalog.sweep(grace_us=0) == ()

    anew = replace(make_image(1), slab=7, offset=0)
    assert await scene.catalog.keep_image(bob.segment, 3, anew) == anew
    assert await scene.catalog.live_images() == (anew,)
    assert await scene.catalog.sweep(grace_us=0) == ()


async def test_one_image_may_stand_for_several_places(scene, make_image):
    made = await scene.create("alice")
    await scene.catalog.add_image(made.segment, 1, make_image(1))
    await scene.catalog.add_image(made.segment, 2, make_image(1))

    assert await scene.catalog.live_images() == (make_image(1),)
    assert await scene.catalog.image_at(made.segment, 2) == make_image(1)


class TestImport:
    async def test_begins_at_the_image(self, scene, make_image, make_meta):
        actor, version = await scene.catalog.import_image(
            scene.new("alice"), make_image(1), make_meta(10, (7,)), agent="someone"
        )

        assert actor == await scene.catalog.actor("alice")
        assert (actor.position, actor.base, actor.head) == (10, 9, 0)
        assert (version.op, version.position, version.parents) == (Op.IMPORT, 10, ())
        assert (version.digest, version.build) == (make_image(1).digest, "build-of-image")
        assert (version.agent, version.rule) == ("someone", None)
        assert version == await scene.catalog.version("alice@0")
        segment = await scene.catalog.segment(actor.segment)
        assert (segment.rooted, segment.position) == (True, 10)
        runs = await scene.catalog.transcript(actor.segment, 0, 10)
        assert [(run.position, run.tokens) for run in runs] == [(9, (7,))]
        assert await scene.catalog.nearest_image(actor.segment, 10) == (10, make_image(1))

    async def test_goes_on_and_forks_like_any_other(self, scene, make_image, make_meta):
        actor, _ = await scene.catalog.import_image(
            scene.new("alice"), make_image(1), make_meta(10, (7,))
        )
        actor, _ = await scene.turn(actor, (1,), (2, 3))
        child = await scene.fork("bob", Origin(segment=actor.segment, position=11, handle=None))

        assert (child.base, child.position) == (9, 11)
        runs = await scene.catalog.transcript(child.segment, 0, 11)
        assert [(run.position, run.tokens) for run in runs] == [(9, (7, 1))]
        back, _ = await scene.catalog.rollback(
            actor.id,
            Origin(segment=actor.segment, position=10, handle="alice@0"),
            seed=None,
            guard=Guard(),
        )
        assert (back.base, back.position) == (9, 10)
        assert (await scene.catalog.version("alice@3")).digest == make_image(1).digest

    async def test_nothing_leads_to_what_was_before(self, scene, make_image, make_meta):
        actor, _ = await scene.catalog.import_image(
            scene.new("alice"), make_image(1), make_meta(10, (6, 7))
        )
        for position in (0, 7, 8, 9):
            origin = Origin(segment=actor.segment, position=position, handle=None)
            with pytest.raises(VersionNotFound):
                await scene.fork("bob", origin)
            with pytest.raises(VersionNotFound):
                await scene.catalog.nearest_image(actor.segment, position)

    async def test_with_nothing_pending(self, scene, make_image, make_meta):
        actor, _ = await scene.catalog.import_image(
            scene.new("alice"), make_image(1), make_meta(10, ())
        )
        assert (actor.base, actor.position) == (10, 10)
        assert await scene.catalog.transcript(actor.segment, 0, 100) == ()
        with pytest.raises(VersionNotFound):
            await scene.catalog.nearest_image(actor.segment, 9)
        actor, _ = await scene.turn(actor, (1,))
        assert (await scene.catalog.nearest_image(actor.segment, 11))[0] == 10

    async def test_a_taken_name_is_refused_and_leaves_no_image(self, scene, make_image, make_meta):
        await scene.create("alice")
        with pytest.raises(ActorExists):
            await scene.catalog.import_image(scene.new("alice"), make_image(1), make_meta(10, ()))
        assert await scene.catalog.live_images() == ()
