from __future__ import annotations

import pytest

from statevisor.hypervisor.catalog_port import ActorQuery, Guard, Origin
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorNotFound,
    Conflict,
    Fenced,
    GenerationConflict,
)
from statevisor.hypervisor.vocab import Op


async def test_a_created_actor_is_found_by_name_and_by_id(scene):
    new = scene.new("alice", labels={"team": "red"}, seed=2**53 - 1)
    made = await scene.catalog.create(new, (7, 8, 9))

    assert made == await scene.catalog.actor("alice") == await scene.catalog.actor(new.id)
    assert (made.name, made.model, made.seed, made.labels) == (
        "alice",
        "demo",
        2**53 - 1,
        {"team": "red"},
    )
    assert (made.position, made.base, made.head, made.generation) == (3, 0, 0, 1)
    assert (made.parent, made.quarantine, made.pinned, made.ttl_s) == (None, None, False, None)
    assert made.drift is False
    assert made.created_at == made.updated_at == scene.clock[0]


async def test_creation_makes_version_0_behind_the_prompt(scene):
    made = await scene.create("alice", (7, 8, 9))
    version = await scene.catalog.version("alice@0")

    assert (version.op, version.position, version.segment) == (Op.CREATE, 3, made.segment)
    assert version.parents == ()
    assert await scene.tokens(made) == [7, 8, 9]


async def test_an_actor_without_a_prompt_stands_at_zero(scene):
    made = await scene.create("alice", ())

    assert made.position == 0
    assert await scene.catalog.transcript(made.segment, 0, 100) == ()


async def test_a_name_is_taken_once(scene):
    await scene.create("alice")

    with pytest.raises(ActorExists):
        await scene.create("alice")

    assert await scene.catalog.count_actors() == 1


async def test_an_id_is_taken_for_ever(scene):
    made = await scene.create("alice")
    await scene.catalog.delete(made.id, guard=Guard())

    with pytest.raises(ActorExists):
        await scene.catalog.create(scene.new("bob", id=made.id), ())


async def test_unknown_actors_are_not_found(scene):
    with pytest.raises(ActorNotFound):
        await scene.catalog.actor("nobody")
    with pytest.raises(ActorNotFound):
        await scene.catalog.update("act_nobody", guard=Guard(), pinned=True)


async def test_update_changes_what_is_given_and_nothing_else(scene):
    old = await scene.create("alice")
    scene.clock[0] += 5
    changed = await scene.catalog.update(
        old.id, guard=Guard(), name="anna", labels={"a": "1"}, pinned=True, ttl_s=60, seed=9
    )

    assert changed == await scene.catalog.actor("anna")
    assert (changed.labels, changed.pinned, changed.ttl_s, changed.seed) == (
        {"a": "1"},
        True,
        60,
        9,
    )
    assert changed.generation == old.generation + 1
    assert changed.updated_at == old.updated_at + 5
    again = await scene.catalog.update(old.id, guard=Guard(), pinned=False)
    assert (again.pinned, again.ttl_s, again.seed, again.labels) == (False, 60, 9, {"a": "1"})
    with pytest.raises(ActorNotFound):
        await scene.catalog.actor("alice")


async def test_ttl_zero_takes_the_ttl_away(scene):
    made = await scene.create("alice")
    await scene.catalog.update(made.id, guard=Guard(), ttl_s=60)

    assert (await scene.catalog.update(made.id, guard=Guard(), ttl_s=0)).ttl_s is None


async def test_a_rename_to_a_taken_name_changes_nothing(scene):
    made = await scene.create("alice")
    await scene.create("bob")

    with pytest.raises(ActorExists):
        await scene.catalog.update(made.id, guard=Guard(), name="bob", pinned=True)

    assert await scene.catalog.actor("alice") == made
    assert (await scene.catalog.update(made.id, guard=Guard(), name="alice")).name == "alice"


async def test_a_stale_generation_is_refused(scene):
    made = await scene.create("alice")
    await scene.catalog.update(made.id, guard=Guard(generation=1), pinned=True)

    with pytest.raises(GenerationConflict) as caught:
        await scene.catalog.update(made.id, guard=Guard(generation=1), pinned=False)

    assert not isinstance(caught.value, Fenced)
    assert (await scene.catalog.actor("alice")).pinned


async def test_a_deleted_actor_is_gone_and_its_name_is_free(scene):
    made = await scene.create("alice")
    await scene.catalog.delete(made.id, guard=Guard())

    for key in ("alice", made.id):
        with pytest.raises(ActorNotFound):
            await scene.catalog.actor(key)
    with pytest.raises(ActorNotFound):
        await scene.catalog.delete(made.id, guard=Guard())
    with pytest.raises(ActorNotFound):
        await scene.catalog.versions(made.id, None, 10)
    assert await scene.catalog.count_actors() == 0
    assert (await scene.catalog.actors(ActorQuery()))[0] == ()
    again = await scene.create("alice")
    assert again.id != made.id
    assert (await scene.catalog.version("alice@0")).actor_id == again.id


async def test_an_actor_with_an_open_turn_cannot_be_deleted(scene):
    made = await scene.create("alice")
    await scene.begin(made)

    with pytest.raises(Conflict):
        await scene.catalog.delete(made.id, guard=Guard())


async def test_quarantine_is_set_and_lifted(scene):
    made = await scene.create("alice")

    assert (await scene.catalog.quarantine(made.id, "not finite", guard=Guard())).quarantine == (
        "not finite"
    )
    lifted = await scene.catalog.quarantine(made.id, None, guard=Guard())
    assert lifted.quarantine is None
    assert lifted.generation == made.generation + 2


async def test_drift_marks_every_version_and_fork_from_then_on(scene):
    made = await scene.create("alice")
    drifted = await scene.catalog.update(made.id, guard=Guard(), drift=True)
    assert drifted.drift

    actor, version = await scene.turn(drifted, (), (5,))
    assert version.drift
    child = await scene.fork_version("bob", version.handle)
    assert child.drift
    assert (await scene.catalog.version("bob@0")).drift
    assert (await scene.turn(child, (), (6,)))[1].drift
    assert not (await scene.catalog.version("alice@0")).drift
    assert (await scene.mutate(actor))[1].drift


async def test_builds_are_written_into_what_is_computed_and_inherited_by_what_is_not(scene):
    first = await scene.create("before")
    scene.catalog.use_builds({"demo": "build-1"})
    made = await scene.create("alice")
    actor, turn = await scene.turn(made, (4,), (5, 6))
    scene.catalog.use_builds({"demo": "build-2"})
    copy = await scene.fork_version("copy", turn.handle)
    bare = await scene.fork("bare", Origin(segment=actor.segment, position=5, handle=None), (1,))

    async def build(handle: str) -> str | None:
        return (await scene.catalog.version(handle)).build

    assert await build(f"{first.name}@0") is None
    assert await build("alice@0") == "build-1"
    assert turn.build == "build-1"
    assert await build("copy@0") == "build-1"
    assert await build("bare@0") == "build-1"
    assert await build("bare@1") == "build-2"
    assert (await scene.turn(copy, (), (1,)))[1].build == "build-2"
    assert (await scene.mutate(bare))[1].build == "build-of-image"


class TestPages:
    async def test_pages_follow_the_order_of_creation(self, scene):
        made = [await scene.create(f"actor-{number}") for number in range(5)]

        first, more = await scene.catalog.actors(ActorQuery(limit=2))
        assert (first, more) == (tuple(made[:2]), True)
        second, more = await scene.catalog.actors(ActorQuery(limit=2, after=first[-1].id))
        assert (second, more) == (tuple(made[2:4]), True)
        third, more = await scene.catalog.actors(ActorQuery(limit=2, after=second[-1].id))
        assert (third, more) == ((made[4],), False)
        assert await scene.catalog.actors(ActorQuery(limit=5)) == (tuple(made), False)

    async def test_filters_are_all_held(self, scene):
        red = await scene.catalog.create(scene.new("red_one", labels={"c": "red", "n": "1"}), ())
        blue = await scene.catalog.create(scene.new("Blue%two", labels={"c": "blue"}), ())
        other = await scene.catalog.create(scene.new("three", model="other"), ())

        async def found(**query):
            return (await scene.catalog.actors(ActorQuery(**query)))[0]

        assert await found(model="other") == (other,)
        assert await found(label=("c", None)) == (red, blue)
        assert await found(label=("c", "blue")) == (blue,)
        assert await found(label=("n", "2")) == ()
        assert await found(q="D_o") == (red,)
        assert await found(q="%t") == (blue,)
        assert await found(ids=frozenset({red.id, other.id})) == (red, other)
        assert await found(ids=frozenset()) == ()
        assert await found(exclude=frozenset({red.id})) == (blue, other)
        assert await found(ids=frozenset({red.id}), model="other") == ()

    async def test_changed_and_removed_labels_are_no_longer_found(self, scene):
        made = await scene.catalog.create(scene.new("a", labels={"c": "red"}), ())
        await scene.catalog.update(made.id, guard=Guard(), labels={"d": "1"})

        assert (await scene.catalog.actors(ActorQuery(label=("c", None))))[0] == ()
        assert len((await scene.catalog.actors(ActorQuery(label=("d", "1"))))[0]) == 1
        await scene.catalog.delete(made.id, guard=Guard())
        assert (await scene.catalog.actors(ActorQuery(label=("d", "1"))))[0] == ()

    async def test_thousands_of_wanted_or_excluded_ids_are_no_obstacle(self, scene):
        made = [await scene.create(f"actor-{number}") for number in range(7)]
        strangers = {f"act_{number:06}" for number in range(500_000, 503_000)}

        wanted = frozenset({made[1].id, made[6].id} | strangers)
        assert (await scene.catalog.actors(ActorQuery(ids=wanted)))[0] == (made[1], made[6])
        page = await scene.catalog.actors(ActorQuery(ids=wanted, limit=1))
        assert page == ((made[1],), True)
        rest = await scene.catalog.actors(ActorQuery(exclude=wanted, limit=4))
        assert rest == (tuple(made[n] for n in (0, 2, 3, 4)), True)


async def test_the_actors_that_changed_last_come_first(scene):
    made = []
    for name in ("alice", "bob", "carol", "dave"):
        scene.clock[0] += 5
        made.append(await scene.create(name))
    scene.clock[0] += 5
    await scene.catalog.update(made[1].id, guard=Guard(), pinned=True)
    await scene.catalog.delete(made[3].id, guard=Guard())
    await scene.catalog.claim("another owner changes nobody")

    assert [one.name for one in await scene.catalog.recent(2)] == ["bob", "carol"]
    found = await scene.catalog.recent(10)
    assert [one.name for one in found] == ["bob", "carol", "alice"]
    assert found[0] == await scene.catalog.actor("bob")
