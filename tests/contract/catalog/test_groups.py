"""What concurrent calls may expect of each other, and stale writers of nobody."""

from __future__ import annotations

import asyncio

import pytest

from statevisor.hypervisor.catalog_port import Guard, JournalEntry, Origin, Provenance
from statevisor.hypervisor.errors import ActorExists, Conflict, Fenced, StatevisorError


async def test_a_failing_call_disturbs_no_other_and_leaves_nothing(scene):
    await scene.create("taken")
    calls = []
    for number in range(30):
        name = "taken" if number % 3 == 1 else f"actor-{number}"
        calls.append(scene.catalog.create(scene.new(name), (number,)))
    results = await asyncio.gather(*calls, return_exceptions=True)

    for number, result in enumerate(results):
        if number % 3 == 1:
            assert isinstance(result, ActorExists)
        else:
            assert await scene.tokens(result) == [number]
    assert await scene.catalog.count_actors() == 21


async def test_calls_take_effect_in_the_order_they_were_made(scene):
    made = await scene.create("alice")
    results = await asyncio.gather(
        *(
            scene.catalog.update(made.id, guard=Guard(generation=made.generation + n), seed=n)
            for n in range(20)
        )
    )

    assert [one.seed for one in results] == list(range(20))
    assert [one.generation for one in results] == [made.generation + 1 + n for n in range(20)]


async def test_a_turn_can_be_journalled_and_closed_without_waiting(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made)
    results = await asyncio.gather(
        scene.say(turn, 3, 10),
        scene.say(turn, 5, 99),
        scene.say(turn, 4, 11),
        scene.end(turn, 9),
        scene.end(turn, 5),
        scene.say(turn, 5, 12),
        return_exceptions=True,
    )

    assert results[0] is None
    assert isinstance(results[1], StatevisorError)
    assert results[2] is None
    assert isinstance(results[3], StatevisorError)
    assert isinstance(results[5], Conflict)
    actor, version = results[4]
    assert (actor.position, version.seq) == (5, 1)
    assert await scene.tokens(actor) == [1, 2, 3, 10, 11]


async def test_what_a_call_returned_every_later_read_sees(scene):
    async def live(number: int) -> None:
        actor = await scene.create(f"actor-{number}")
        turn = await scene.begin(actor, (4,))
        assert (await scene.catalog.actor(actor.id)).position == 4
        for token in range(5):
            await scene.say(turn, 4 + token, token)
            assert (await scene.catalog.actor(actor.id)).position == 5 + token
            assert (await scene.catalog.turn(turn.id)).position == 5 + token
            seen = await scene.catalog.transcript(actor.segment, 4, 100)
            assert seen[0].tokens == tuple(range(token + 1))
        ended, version = await scene.end(turn, 9)
        assert await scene.catalog.actor(actor.id) == ended
        assert await scene.catalog.version(version.handle) == version

    await asyncio.gather(*(live(number) for number in range(8)))


async def test_many_turns_share_groups(scene):
    actors = [await scene.create(f"actor-{number}", (number,)) for number in range(20)]
    turns = [await scene.begin(actor) for actor in actors]
    for step in range(10):
        entries = [
            JournalEntry(
                turn_id=turn.id, segment=turn.segment, position=1 + step, tokens=(100 * step + n,)
            )
            for n, turn in enumerate(turns)
        ]
        await scene.catalog.journal(entries, incarnation=scene.incarnation)
    ended = await asyncio.gather(*(scene.end(turn, 11) for turn in turns))

    for n, (actor, _) in enumerate(ended):
        assert await scene.tokens(actor) == [n, *(100 * step + n for step in range(10))]


async def test_a_cancelled_call_takes_effect_whole_or_not_at_all(scene):
    made = await scene.create("alice")
    origin = Origin(segment=made.segment, position=3, handle="alice@0")
    task = asyncio.create_task(scene.catalog.fork([scene.new("b"), scene.new("c")], origin))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await scene.create("other")

    assert await scene.catalog.count_actors() in (2, 4)


async def test_a_claim_makes_older_incarnations_and_epochs_stale(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made)
    newer = await scene.catalog.claim("somebody else")

    assert newer > scene.incarnation
    with pytest.raises(Fenced):
        await scene.say(turn, 3, 7)
    with pytest.raises(Fenced):
        await scene.catalog.update(made.id, guard=Guard(epoch=made.epoch), pinned=True)
    now = await scene.catalog.actor("alice")
    assert (now.epoch, now.generation) == (made.epoch + 1, made.generation + 1)
    scene.incarnation = newer
    await scene.say(turn, 3, 8)
    ended, _ = await scene.end(turn, 4, guard=Guard(epoch=now.epoch))
    assert await scene.tokens(ended) == [1, 2, 3, 8]


async def test_an_incarnation_that_was_never_given_out_is_refused(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made)
    scene.incarnation += 1
    with pytest.raises(Fenced):
        await scene.say(turn, 3, 7)


@pytest.mark.parametrize("changes", [{"epoch": 0}, {"generation": 7}])
async def test_every_change_holds_its_guard(scene, make_image, changes):
    made = await scene.create("alice")
    guard = Guard(**changes)
    catalog = scene.catalog
    origin = Origin(segment=made.segment, position=3, handle="alice@0")
    for call in (
        catalog.update(made.id, guard=guard, pinned=True),
        catalog.delete(made.id, guard=guard),
        catalog.quarantine(made.id, "x", guard=guard),
        catalog.snapshot(made.id, made.segment, 3, tag=None, labels={}, guard=guard),
        catalog.rollback(made.id, origin, seed=None, guard=guard),
        catalog.mutate(made.id, make_image(1), Provenance(rule="zero"), guard=guard),
    ):
        with pytest.raises(Fenced if "epoch" in changes else StatevisorError) as caught:
            await call
        assert caught.value.code == "generation_conflict"
    assert await catalog.actor("alice") == made
