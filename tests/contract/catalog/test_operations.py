from __future__ import annotations

import pytest

from statevisor.hypervisor.catalog_port import Guard, Once, Origin, Provenance
from statevisor.hypervisor.errors import ActorBusy, ActorExists, Conflict, IdempotencyMismatch
from statevisor.hypervisor.vocab import FinishReason

ONCE = Once(key="k", request="r")


async def test_a_key_keeps_what_its_operation_returned(scene, make_image, make_meta):
    catalog = scene.catalog
    made = await catalog.create(scene.new("alice"), (1,), once=Once(key="1", request="r"))
    origin = Origin(segment=made.segment, position=1, handle="alice@0")

    def guard(key: str) -> Guard:
        return Guard(once=Once(key=key, request="r"))

    await catalog.fork([scene.new("b"), scene.new("c")], origin, once=Once(key="2", request="r"))
    await catalog.update(made.id, guard=guard("3"), pinned=True)
    await catalog.quarantine(made.id, "bad", guard=guard("4"))
    await catalog.rollback(made.id, origin, seed=None, guard=guard("5"))
    await catalog.snapshot(made.id, made.segment, 1, tag=None, labels={}, guard=guard("6"))
    await catalog.mutate(made.id, make_image(1), Provenance(rule="zero"), guard=guard("7"))
    await catalog.import_image(
        scene.new("d"), make_image(2), make_meta(4, ()), once=Once(key="8", request="r")
    )
    await catalog.delete(made.id, guard=guard("9"))
    await catalog.remember(Once(key="10", request="r"), {"anything": [1]})

    results = {key: (await catalog.operation(key)).result for key in map(str, range(1, 11))}
    assert results["1"]["actor"]["id"] == made.id
    assert results["1"]["actor"]["position"] == 1
    assert [one["name"] for one in results["2"]["actors"]] == ["b", "c"]
    assert results["3"]["actor"]["pinned"] is True
    assert results["4"]["actor"]["quarantine"] == "bad"
    assert results["5"]["version"]["op"] == "rollback"
    assert results["5"]["actor"]["head"] == 1
    assert results["6"]["version"]["seq"] == 2
    assert results["7"]["version"]["rule"] == "zero"
    assert results["8"]["actor"]["base"] == 4
    assert results["9"] == {}
    assert results["10"] == {"anything": [1]}
    assert await catalog.operation("11") is None


async def test_a_used_key_does_nothing_again(scene):
    await scene.catalog.create(scene.new("alice"), (), once=ONCE)

    with pytest.raises(ActorBusy):
        await scene.catalog.create(scene.new("bob"), (), once=ONCE)
    with pytest.raises(IdempotencyMismatch):
        await scene.catalog.create(scene.new("bob"), (), once=Once(key="k", request="other"))
    with pytest.raises(IdempotencyMismatch):
        await scene.catalog.remember(Once(key="k", request="other"), {})

    assert await scene.catalog.count_actors() == 1


async def test_a_failed_operation_does_not_use_its_key_up(scene):
    await scene.create("alice")
    with pytest.raises(ActorExists):
        await scene.catalog.create(scene.new("alice"), (), once=ONCE)
    assert await scene.catalog.operation("k") is None

    await scene.catalog.create(scene.new("bob"), (), once=ONCE)
    assert (await scene.catalog.operation("k")).request == "r"


async def test_a_turn_keeps_its_key_from_its_prompt_to_its_result(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (4,), once=ONCE)
    found = await scene.catalog.operation("k")
    assert (found.turn_id, found.result, found.created_at) == (turn.id, None, scene.clock[0])
    actor = await scene.catalog.actor("alice")
    with pytest.raises(Conflict):
        await scene.begin(actor, once=ONCE)

    await scene.end(turn, 4, result={"text": "four"})

    assert (await scene.catalog.operation("k")).result == {"text": "four"}
    with pytest.raises(ActorBusy):
        await scene.begin(await scene.catalog.actor("alice"), once=ONCE)


async def test_the_key_of_a_broken_turn_begins_another(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (4,), once=ONCE)
    actor, _ = await scene.end(turn, 4, finish=FinishReason.CANCELLED, broken=True)
    with pytest.raises(IdempotencyMismatch):
        await scene.begin(actor, once=Once(key="k", request="other"))
    with pytest.raises(Conflict):
        await scene.catalog.update(actor.id, guard=Guard(once=ONCE), pinned=True)

    again = await scene.begin(actor, once=ONCE)

    assert (await scene.catalog.operation("k")).turn_id == again.id
    await scene.end(again, 4, result={"n": 1})
    assert (await scene.catalog.operation("k")).result == {"n": 1}


async def test_a_turn_that_ended_without_a_result_keeps_its_key(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, once=ONCE)
    actor, _ = await scene.end(turn, 3)

    with pytest.raises(Conflict):
        await scene.begin(actor, once=ONCE)
    await scene.catalog.remember(ONCE, {"late": True})
    found = await scene.catalog.operation("k")
    assert (found.result, found.turn_id) == ({"late": True}, turn.id)


async def test_keys_expire(scene):
    await scene.catalog.create(scene.new("alice"), (), once=ONCE)
    scene.clock[0] += 24 * 3600 * 10**6
    assert await scene.catalog.operation("k") is not None
    scene.clock[0] += 1
    assert await scene.catalog.operation("k") is None

    await scene.catalog.create(scene.new("bob"), (), once=Once(key="k", request="new"))

    assert (await scene.catalog.operation("k")).request == "new"
