"""Histories branch exactly: snapshot, fork, mutate, rollback, export, import, verify."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statevisor.guests.toy import POISON
from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    DeleteActor,
    Fork,
    Generate,
    ImportImage,
    Mutate,
    Rollback,
    Snapshot,
    UpdateActor,
)
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorQuarantined,
    ImageCorrupt,
    InvalidRequest,
    VersionNotFound,
)
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.vocab import Op, Rng

STORY = "once upon a time"


def mutation(rule: str = "decay", **params: Any) -> Mutation:
    return Mutation(rule=rule, params=params or {"alpha": 0.5})


async def test_rollback_to_any_position_is_exact(world: Any) -> None:
    await world.create("a", STORY)
    view = await world.say("a", max_tokens=20)
    start = view.position - 20
    for cut in (20, 0, 7, 1):
        await world.visor.rollback(Rollback(actor="a", to=start + cut, rng=Rng.INHERIT))
        rest = await world.say("a", max_tokens=20)
        assert rest.token_ids[: 20 - cut] == view.token_ids[cut:]


async def test_rollback_reseeds_unless_told_to_inherit(world: Any) -> None:
    await world.create("a", STORY)
    first = await world.say("a", max_tokens=30)
    await world.visor.rollback(Rollback(actor="a", to="a@0"))
    assert (await world.visor.actor("a")).record.seed != 7
    assert (await world.say("a", max_tokens=30)).token_ids != first.token_ids


async def test_an_abandoned_branch_stays_reachable(world: Any) -> None:
    await world.create("a", STORY)
    first = await world.say("a", max_tokens=10)
    await world.visor.rollback(Rollback(actor="a", to="a@0"))
    await world.say("a", " another way")
    (back,) = await world.visor.fork(Fork(actor="a", at="a@1"))
    text = (await world.visor.transcript(back.record.name)).text
    assert text == STORY + first.text


async def test_forks_are_reseeded_unless_told_to_inherit(world: Any) -> None:
    await world.create("a", STORY)
    fresh = await world.visor.fork(Fork(actor="a", count=8))
    assert len({view.record.seed for view in fresh} | {7}) == 9
    (same,) = await world.visor.fork(Fork(actor="a", rng=Rng.INHERIT))
    assert same.record.seed == 7
    told = await world.say(same.record.name)
    assert told.token_ids == (await world.say("a")).token_ids


async def test_children_in_any_order_are_independent(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.fork(Fork(actor="a", count=4, names=("b", "c", "d", "e"), seeds=(1, 2, 3, 4)))
    suffix = {"d": " of ice", "b": " of fire", "e": " of rain", "c": " of sand"}
    views = await asyncio.gather(*(world.say(name, text) for name, text in suffix.items()))
    for index, (name, text) in enumerate(suffix.items()):
        solo = f"solo-{name}"
        seed = {"b": 1, "c": 2, "d": 3, "e": 4}[name]
        await world.create(solo, STORY, seed=seed)
        assert (await world.say(solo, text)).token_ids == views[index].token_ids


async def test_a_fork_is_all_or_none(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("taken", None)
    with pytest.raises(ActorExists):
        await world.visor.fork(Fork(actor="a", count=3, names=("x", "taken", "y")))
    records, _ = await world.visor.actors()
    assert {view.record.name for view in records} == {"a", "taken"}


async def test_a_fork_and_a_snapshot_do_not_wait_for_a_turn(world: Any) -> None:
    await world.create("a", STORY)
    stream = await world.visor.generate(Generate(actor="a", max_tokens=3000, ignore_eos=True))
    told = []
    async for event in stream:
        told.append(event)
        if len(told) == 6:
            break
    version = await world.visor.snapshot(Snapshot(actor="a"))
    (child,) = await world.visor.fork(Fork(actor="a", rng=Rng.INHERIT))
    assert version.position >= told[-1].position + 1
    assert child.record.position >= version.position
    stream.cancel()
    done = await stream.result()
    text = (await world.visor.transcript(child.record.name, len(STORY) + 1)).token_ids
    assert done.token_ids[: len(text)] == text


async def test_a_bare_position_makes_an_anchor_that_is_not_listed(world: Any) -> None:
    await world.create("a", STORY)
    before = await world.visor.actor("a")
    (child,) = await world.visor.fork(Fork(actor="a", at=5))
    assert child.record.position == 5
    after = await world.visor.actor("a")
    assert (after.record.head, after.record.generation) == (
        before.record.head,
        before.record.generation,
    )
    versions, _ = await world.visor.versions("a")
    assert [version.seq for version in versions] == [0]
    assert child.record.parent is not None
    assert (await world.visor.version(child.record.parent)).position == 5


@pytest.mark.parametrize("at", [-1, 18, 10**9])
async def test_a_position_outside_the_history_is_refused(world: Any, at: int) -> None:
    await world.create("a", STORY)
    with pytest.raises(InvalidRequest):
        await world.visor.fork(Fork(actor="a", at=at))


async def test_a_version_of_another_history_is_refused(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("b", STORY)
    with pytest.raises(InvalidRequest, match="not in this actor's history"):
        await world.visor.rollback(Rollback(actor="a", to="b@0"))
    with pytest.raises(VersionNotFound):
        await world.visor.rollback(Rollback(actor="a", to="a@9"))


async def test_a_mutation_changes_the_future_and_can_be_rolled_back(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("twin", STORY)
    made = await world.visor.mutate(Mutate(actor="a", mutation=mutation(), reason="test"))
    assert (made.op, made.rule, made.reason) == (Op.MUTATE, "decay", "test")
    assert made.digest is not None
    assert made.before not in (None, made.digest)
    changed, plain = await world.say("a"), await world.say("twin")
    assert changed.token_ids != plain.token_ids
    await world.visor.rollback(Rollback(actor="a", to="a@0", rng=Rng.INHERIT))
    assert (await world.say("a")).token_ids == plain.token_ids


async def test_a_mutated_actor_survives_a_crash_and_hibernation(world: Any) -> None:
    for name in ("a", "twin"):
        await world.create(name, STORY)
        await world.visor.mutate(Mutate(actor=name, mutation=mutation()))
    await world.say("a", " so")
    await world.say("twin", " so")
    expected = await world.say("twin")
    await world.crash()
    assert (await world.say("a")).token_ids == expected.token_ids


async def test_selection_limits_a_rule(world: Any) -> None:
    await world.create("a", STORY)
    part = Mutation(rule="zero", params={}, families=("shift",), layers=(1,))
    await world.visor.mutate(Mutate(actor="a", mutation=part))
    diff = await world.visor.diff("a@0", "a@1")
    assert {(f.family, f.layer) for f in diff.families if f.distance} == {("shift", 1)}
    assert diff.shared_tokens == len(STORY) + 1


async def test_a_blend_names_all_its_parents(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("b", "another story")
    blend = mutation("blend", others=["b@0"], weights=[0.25])
    made = await world.visor.mutate(Mutate(actor="a", mutation=blend))
    assert set(made.parents) == {"a@0", "b@0"}
    view = await world.visor.lineage("a")
    assert {node.handle for node in view.nodes} == {"a@1", "a@0", "b@0"}
    assert (await world.visor.verify("a@1")).ok
    await world.visor.update(UpdateActor(actor="b", name="c"))
    assert (await world.visor.verify("a@1")).ok
    await world.visor.delete(DeleteActor(actor="c"))
    await world.create("b", "not what was blended")
    assert (await world.visor.verify("a@1")).ok


async def test_every_handle_of_a_lineage_is_found(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.fork(Fork(actor="a", names=("b",), at=4))
    await world.visor.delete(DeleteActor(actor="a"))
    for direction in ("ancestors", "both"):
        view = await world.visor.lineage("b", direction)
        assert len(view.nodes) == 3
        for node in view.nodes:
            assert (await world.visor.version(node.handle)).handle == node.handle


async def test_verify_rederives_every_version(world: Any) -> None:
    await world.create("a", STORY)
    await world.say("a")
    await world.visor.mutate(Mutate(actor="a", mutation=mutation()))
    await world.visor.mutate(Mutate(actor="a", mutation=mutation("noise", std=1, seed=3)))
    await world.visor.snapshot(Snapshot(actor="a", tag="after", wait=True))
    await world.say("a", " on")
    for key in ("a@0", "a@1", "a@2", "a@3", "after", "a@5"):
        view = await world.visor.verify(key)
        assert view.ok, key
        assert view.digest


async def test_verify_finds_the_parents_of_a_blend_whatever_became_of_their_names(
    world: Any,
) -> None:
    await world.create("a", STORY)
    await world.create("b", "another story")
    await world.visor.snapshot(Snapshot(actor="b", tag="t"))
    blend = mutation("blend", others=["b@0", "t"], weights=[0.25, 0.5])
    await world.visor.mutate(Mutate(actor="a", mutation=blend))
    await world.say("b")
    await world.visor.snapshot(Snapshot(actor="b", tag="t"))
    assert (await world.visor.verify("a@1")).ok
    await world.visor.update(UpdateActor(actor="b", name="c"))
    await world.create("b", "quite another")
    assert (await world.visor.verify("a@1")).ok
    await world.visor.delete(DeleteActor(actor="c"))
    assert (await world.visor.verify("a@1")).ok


async def test_verify_notices_a_state_that_its_history_does_not_give(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.snapshot(Snapshot(actor="a", wait=True))
    mutate = world.guest.mutate
    await world.visor.mutate(Mutate(actor="a", mutation=mutation()))
    other = Mutation(rule="zero", params={})
    world.guest.mutate = lambda _, rows: mutate(other, rows)
    view = await world.visor.verify("a@2")
    assert not view.ok
    assert view.expected != view.digest


async def test_a_version_whose_state_is_not_finite_is_refused_by_name(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.append(Append(actor="a", prompt=(POISON, 1)))
    for ask in (world.visor.export, world.visor.verify):
        with pytest.raises(ActorQuarantined, match="not finite"):
            await ask("a@1")


async def test_export_and_import_change_no_byte(world: Any) -> None:
    await world.create("a", STORY)
    await world.say("a", max_tokens=5)
    file = await world.visor.export("a@1")
    version = await world.visor.import_image(ImportImage(name="b", file=file))
    assert version.op is Op.IMPORT
    assert await world.visor.export("b@0") == file
    record = (await world.visor.actor("b")).record
    assert record.position == (await world.visor.actor("a")).record.position
    one = await world.say("a", seed=3)
    assert (await world.say("b", seed=3)).token_ids == one.token_ids
    assert (await world.visor.verify("b@0")).ok
    with pytest.raises(InvalidRequest):
        await world.visor.fork(Fork(actor="b", at=1))


async def test_a_damaged_import_is_refused_whole(world: Any) -> None:
    await world.create("a", STORY)
    file = bytearray(await world.visor.export("a@0"))
    for at in (0, 9, 200, len(file) - 1):
        file[at] ^= 1
        with pytest.raises((ImageCorrupt, InvalidRequest)):
            await world.visor.import_image(ImportImage(name="b", file=bytes(file)))
        file[at] ^= 1
    assert len((await world.visor.actors())[0]) == 1


async def test_a_tag_names_a_version_and_moves(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.snapshot(Snapshot(actor="a", tag="here"))
    await world.say("a")
    later = await world.visor.snapshot(Snapshot(actor="a", tag="here"))
    assert (await world.visor.version("here")).handle == later.handle


async def test_an_actor_can_begin_from_a_version_with_a_prompt(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("twin", STORY + " there")
    await world.visor.create(CreateActor(name="b", source="a@0", prompt=" there", seed=7))
    assert (await world.visor.transcript("b")).text == STORY + " there"
    assert (await world.say("b")).token_ids == (await world.say("twin")).token_ids


async def test_a_key_repeats_the_actor_that_began_from_a_version(world: Any) -> None:
    await world.create("a", STORY)
    command = CreateActor(name="b", source="a@0", once=Once(key="k", request="r"))
    first = await world.visor.create(command)
    assert (await world.visor.create(command)).record == first.record


async def test_a_child_can_be_rolled_back_into_the_history_of_a_deleted_parent(world: Any) -> None:
    await world.create("a", STORY)
    (child,) = await world.visor.fork(Fork(actor="a", names=("child",)))
    parent = (await world.visor.actor("a")).record.id
    await world.say("child")
    await world.visor.delete(DeleteActor(actor="a"))
    view = await world.visor.rollback(Rollback(actor="child", to=f"{parent}@0"))
    assert view.record.position == child.record.position


async def test_keys_repeat_their_results(world: Any) -> None:
    await world.create("a", STORY)
    once = [Once(key=f"k{i}", request="r") for i in range(5)]
    for _ in range(2):
        await world.visor.create(CreateActor(name="b", once=once[0]))
        children = await world.visor.fork(Fork(actor="a", count=2, once=once[1]))
        snap = await world.visor.snapshot(Snapshot(actor="a", once=once[2]))
        made = await world.visor.mutate(Mutate(actor="a", mutation=mutation(), once=once[3]))
        rolled = await world.visor.rollback(Rollback(actor="a", to="a@0", once=once[4]))
    assert len((await world.visor.actors())[0]) == 4
    assert [view.record.parent for view in children] == ["a@0", "a@0"]
    versions, _ = await world.visor.versions("a")
    assert [version.seq for version in versions] == [0, snap.seq, made.seq, rolled.record.head]


async def test_common_ancestor_and_blame(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.mutate(Mutate(actor="a", mutation=mutation()))
    (b,) = await world.visor.fork(Fork(actor="a", names=("b",)))
    await world.say("a", " x")
    await world.say("b", " y")
    assert (await world.visor.common_ancestor("a@2", "b@1")).handle == "a@1"
    blamed = await world.visor.blame("b@1", 0)
    assert blamed is not None
    assert blamed.handle == "a@1"
    assert b.record.parent == "a@1"


async def test_a_version_read_with_wait_has_its_digest(world: Any) -> None:
    await world.create("a", STORY)
    await world.say("a")
    assert (await world.visor.version("a@0")).digest is None
    read = await world.visor.version("a@0", wait=True)
    assert read.digest is not None
    assert read == await world.visor.version("a@0")


async def test_a_tag_is_not_taken_from_another_actors_version(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("b", STORY)
    await world.visor.snapshot(Snapshot(actor="a", tag="before"))
    with pytest.raises(InvalidRequest, match="names a@1 already"):
        await world.visor.snapshot(Snapshot(actor="b", tag="before"))
    assert (await world.visor.version("before")).handle == "a@1"


async def test_a_name_is_never_an_id(world: Any) -> None:
    await world.create("a", STORY)
    own = (await world.visor.actor("a")).record.id
    for name in (own, "act_x"):
        with pytest.raises(InvalidRequest, match="id"):
            await world.create(name, STORY)
        with pytest.raises(InvalidRequest, match="id"):
            await world.visor.fork(Fork(actor="a", names=(name,)))


async def test_blame_knows_how_many_layers_there_are(world: Any) -> None:
    await world.create("a", STORY)
    with pytest.raises(InvalidRequest, match=r"not in 0\.\.1"):
        await world.visor.blame("a@0", 2)


async def test_a_version_beyond_the_fork_is_not_in_the_childs_history(world: Any) -> None:
    await world.create("a", STORY)
    await world.visor.fork(Fork(actor="a", names=("b",)))
    await world.say("a")
    with pytest.raises(InvalidRequest, match="not in this actor's history"):
        await world.visor.rollback(Rollback(actor="b", to="a@1"))
    with pytest.raises(InvalidRequest, match="not in this actor's history"):
        await world.visor.fork(Fork(actor="b", at="a@1"))
    await world.visor.rollback(Rollback(actor="b", to="a@0"))


async def test_an_image_named_at_another_place_is_not_served(world: Any) -> None:
    await world.create("a", STORY)
    await world.say("a")
    await world.visor.snapshot(Snapshot(actor="a", wait=True))
    record = (await world.visor.actor("a")).record
    wrong = await world.catalog.image_at(record.segment, record.position)
    await world.create("b", STORY)
    other = (await world.visor.actor("b")).record
    await world.catalog.add_image(other.segment, other.position, wrong)
    await world.crash()
    await world.create("twin", STORY)
    assert (await world.say("b")).token_ids == (await world.say("twin")).token_ids
    assert await world.catalog.image_at(other.segment, other.position) != wrong
