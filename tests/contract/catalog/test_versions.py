from __future__ import annotations

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorNotFound,
    Conflict,
    NotFound,
    VersionNotFound,
)
from statevisor.hypervisor.vocab import Op


async def test_a_version_is_found_by_name_id_and_tag(scene):
    made = await scene.create("alice")
    version = await scene.catalog.snapshot(
        made.id, made.segment, 3, tag="golden", labels={"k": "v"}, guard=Guard()
    )

    assert version.handle == "alice@1"
    assert (version.op, version.tags, version.labels) == (Op.SNAPSHOT, ("golden",), {"k": "v"})
    for handle in ("alice@1", f"{made.id}@1", "golden"):
        assert await scene.catalog.version(handle) == version
    for handle in ("alice@2", "bob@0", "act_x@0", "silver"):
        with pytest.raises(VersionNotFound):
            await scene.catalog.version(handle)


async def test_a_tag_moves(scene):
    made = await scene.create("alice")
    await scene.catalog.snapshot(made.id, made.segment, 3, tag="t", labels={}, guard=Guard())
    await scene.catalog.snapshot(made.id, made.segment, 3, tag="t", labels={}, guard=Guard())

    assert (await scene.catalog.version("t")).seq == 2
    assert (await scene.catalog.version("alice@1")).tags == ()


async def test_tags_go_with_their_actor(scene):
    made = await scene.create("alice")
    await scene.catalog.snapshot(made.id, made.segment, 3, tag="t", labels={}, guard=Guard())
    await scene.catalog.delete(made.id, guard=Guard())

    with pytest.raises(VersionNotFound):
        await scene.catalog.version("t")


async def test_a_snapshot_leaves_the_actor_and_an_open_turn_alone(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (4,))
    await scene.say(turn, 4, 9, 8)
    before = await scene.catalog.actor("alice")
    middle = await scene.catalog.snapshot(
        made.id, made.segment, 5, tag=None, labels={}, guard=Guard()
    )

    assert await scene.catalog.actor("alice") == before
    assert (middle.position, middle.parents) == (5, ("alice@0",))
    with pytest.raises(VersionNotFound):
        await scene.catalog.snapshot(made.id, made.segment, 7, tag=None, labels={}, guard=Guard())
    _, ended = await scene.end(turn, 6)
    assert (ended.seq, ended.parents) == (2, ("alice@1",))


async def test_a_snapshot_stands_on_its_actors_own_segments(scene):
    """A collection that takes the actor out would go for the other's history."""
    alice = await scene.create("alice")
    bob = await scene.fork("bob", Origin(segment=alice.segment, position=2, handle=None))

    for place in ((bob.segment, 1), (alice.segment, 3)):
        with pytest.raises(VersionNotFound, match="another"):
            await scene.catalog.snapshot(bob.id, *place, tag="t", labels={}, guard=Guard())
    await scene.catalog.snapshot(bob.id, bob.segment, 2, tag="t", labels={}, guard=Guard())
    await scene.catalog.delete(bob.id, guard=Guard())
    await scene.catalog.sweep(grace_us=0)

    assert (await scene.catalog.count_actors(), await scene.catalog.check()) == (1, ())
    assert await scene.tokens(alice) == [1, 2, 3]


async def test_snapshots_need_a_living_actor_and_a_known_segment(scene):
    made = await scene.create("alice")
    with pytest.raises(NotFound):
        await scene.catalog.snapshot(made.id, 99, 0, tag=None, labels={}, guard=Guard())
    with pytest.raises(ActorNotFound):
        await scene.catalog.snapshot("act_x", made.segment, 0, tag=None, labels={}, guard=Guard())


async def test_versions_are_listed_by_seq_in_pages_without_anchors(scene):
    actor = await scene.create("alice", (1,))
    await scene.fork("bob", Origin(segment=actor.segment, position=0, handle=None))
    for token in range(3):
        actor, _ = await scene.turn(actor, (), (token,))

    page, more = await scene.catalog.versions(actor.id, None, 2)
    assert ([one.seq for one in page], more) == ([0, 2], True)
    page, more = await scene.catalog.versions(actor.id, 2, 2)
    assert ([one.seq for one in page], more) == ([3, 4], False)
    assert (await scene.catalog.version("alice@1")).hidden


async def test_version_at_is_the_newest_visible_one_at_exactly_that_place(scene):
    made = await scene.create("alice")
    actor, _ = await scene.turn(made, (4,), (5, 6))
    child = await scene.fork("bob", Origin(segment=actor.segment, position=5, handle=None))

    async def seq(segment: int, position: int) -> str | None:
        found = await scene.catalog.version_at(segment, position)
        return None if found is None else found.handle

    assert await seq(actor.segment, 6) == "alice@1"
    assert await seq(actor.segment, 5) is None
    assert await seq(actor.segment, 3) == "alice@0"
    assert await seq(child.segment, 5) == "bob@0"
    assert await seq(child.segment, 3) == "alice@0"
    await scene.catalog.snapshot(actor.id, actor.segment, 6, tag=None, labels={}, guard=Guard())
    assert await seq(actor.segment, 6) == "alice@3"
    sibling = await scene.fork_version("carl", "alice@1")
    assert await seq(sibling.segment, 6) == "carl@0"
    assert await seq(actor.segment, 6) == "alice@3"


class TestFork:
    async def test_children_begin_at_a_named_version(self, scene):
        made = await scene.create("alice")
        actor, version = await scene.turn(made, (4,), (5,))
        children = await scene.catalog.fork(
            [scene.new("b"), scene.new("c", labels={"x": "y"})],
            Origin(segment=actor.segment, position=5, handle=version.handle),
        )

        assert [child.name for child in children] == ["b", "c"]
        for child in children:
            assert child == await scene.catalog.actor(child.name)
            assert (child.position, child.head, child.parent) == (5, 0, "alice@1")
            first = await scene.catalog.version(f"{child.name}@0")
            assert (first.op, first.position, first.parents) == (Op.FORK, 5, ("alice@1",))
            assert await scene.tokens(child) == [1, 2, 3, 4, 5]
        assert children[1].labels == {"x": "y"}
        assert children[0].segment != children[1].segment
        assert await scene.catalog.actor("alice") == actor

    async def test_a_bare_position_makes_one_hidden_anchor_and_changes_nothing_else(self, scene):
        made = await scene.create("alice")
        actor, _ = await scene.turn(made, (4,), (5, 6))
        origin = Origin(segment=actor.segment, position=5, handle=None)
        first, second = await scene.fork("b", origin), await scene.fork("c", origin)

        assert first.parent == second.parent == "alice@2"
        anchor = await scene.catalog.version("alice@2")
        assert (anchor.hidden, anchor.op, anchor.position) == (True, Op.SNAPSHOT, 5)
        assert anchor.parents == ("alice@0",)
        assert await scene.catalog.actor("alice") == actor
        _, version = await scene.turn(actor, (), (7,))
        assert (version.seq, version.parents) == (3, ("alice@1",))

    async def test_a_bare_position_with_a_version_names_that(self, scene):
        made = await scene.create("alice")
        child = await scene.fork("b", Origin(segment=made.segment, position=3, handle=None))

        assert child.parent == "alice@0"

    async def test_a_fork_before_the_first_version_still_has_a_parent(self, scene):
        made = await scene.create("alice", (1, 2, 3))
        child = await scene.fork("b", Origin(segment=made.segment, position=1, handle=None))

        assert await scene.tokens(child) == [1]
        assert (await scene.catalog.version(child.parent)).parents == ("alice@0",)

    async def test_a_prompt_is_appended_under_a_version_of_its_own(self, scene):
        made = await scene.create("alice")
        child = await scene.fork(
            "b", Origin(segment=made.segment, position=2, handle=None), prompt=(8, 9)
        )

        assert (child.position, child.head) == (4, 1)
        assert await scene.tokens(child) == [1, 2, 8, 9]
        first, second = [await scene.catalog.version(f"b@{seq}") for seq in (0, 1)]
        assert (first.op, first.position) == (Op.FORK, 2)
        assert (second.op, second.position, second.parents) == (Op.TURN, 4, ("b@0",))

    async def test_all_or_none(self, scene):
        made = await scene.create("alice")
        origin = Origin(segment=made.segment, position=1, handle=None)
        for names in (("b", "alice"), ("b", "b")):
            with pytest.raises(ActorExists):
                await scene.catalog.fork([scene.new(name) for name in names], origin)

        assert await scene.catalog.count_actors() == 1
        with pytest.raises(VersionNotFound):
            await scene.catalog.version("alice@1")
        child = await scene.fork("b", origin)
        assert (child.parent, child.segment) == ("alice@1", made.segment + 1)

    async def test_a_fork_in_the_middle_of_a_turn_sees_what_is_committed(self, scene):
        made = await scene.create("alice")
        turn = await scene.begin(made, (4,))
        await scene.say(turn, 4, 9)
        child = await scene.fork("b", Origin(segment=made.segment, position=5, handle=None))
        with pytest.raises(VersionNotFound):
            await scene.fork("c", Origin(segment=made.segment, position=6, handle=None))
        await scene.say(turn, 5, 10)
        await scene.end(turn, 6)

        assert await scene.tokens(child) == [1, 2, 3, 4, 9]
        grandchild = await scene.fork(
            "c", Origin(segment=child.segment, position=4, handle=None), prompt=(77,)
        )
        assert await scene.tokens(grandchild) == [1, 2, 3, 4, 77]

    async def test_a_fork_of_a_running_turn_reads_it_at_once(self, scene):
        made = await scene.create("alice")
        turn = await scene.begin(made, (4,))
        await scene.say(turn, 4, 9, 10)
        bare = await scene.fork("b", Origin(segment=made.segment, position=5, handle=None))
        assert await scene.tokens(bare) == [1, 2, 3, 4, 9]

        await scene.say(turn, 6, 11, 12)
        version = await scene.catalog.snapshot(
            made.id, made.segment, 7, tag=None, labels={}, guard=Guard()
        )
        named = await scene.fork_version("c", version.handle)
        assert await scene.tokens(named) == [1, 2, 3, 4, 9, 10, 11]

        await scene.say(turn, 8, 13)
        _, last = await scene.end(turn, 9)
        assert await scene.tokens(await scene.fork_version("d", last.handle)) == [
            *(1, 2, 3, 4),
            *(9, 10, 11, 12, 13),
        ]
        assert await scene.tokens(bare) == [1, 2, 3, 4, 9]

    async def test_origins_are_checked(self, scene):
        made = await scene.create("alice")
        await scene.create("bob")
        with pytest.raises(NotFound):
            await scene.fork("x", Origin(segment=99, position=0, handle=None))
        for origin in (
            Origin(segment=made.segment, position=4, handle=None),
            Origin(segment=made.segment, position=3, handle="alice@7"),
            Origin(segment=made.segment, position=2, handle="alice@0"),
            Origin(segment=made.segment, position=3, handle="bob@0"),
        ):
            with pytest.raises(VersionNotFound):
                await scene.fork("x", origin)

    async def test_forks_of_forks_share_the_past(self, scene):
        actor = await scene.create("a0", (0,))
        for number in range(1, 12):
            actor, version = await scene.turn(actor, (), (number,))
            actor = await scene.fork_version(f"a{number}", version.handle)
        actor, _ = await scene.turn(actor, (), (99,))

        assert await scene.tokens(actor) == [*range(12), 99]
        segment = await scene.catalog.segment(actor.segment)
        assert (segment.depth, segment.position, segment.rooted) == (11, 12, False)
        runs = await scene.catalog.transcript(actor.segment, 4, 6)
        assert [run.tokens for run in runs] == [(4, 5)]

    async def test_a_hundred_children_in_one_call(self, scene):
        made = await scene.create("alice")
        children = await scene.catalog.fork(
            [scene.new(f"c{number}") for number in range(100)],
            Origin(segment=made.segment, position=3, handle="alice@0"),
        )

        assert len({child.segment for child in children}) == 100
        assert await scene.catalog.count_actors() == 101

    async def test_no_children_is_no_fork(self, scene):
        made = await scene.create("alice")
        origin = Origin(segment=made.segment, position=3, handle="alice@0")
        assert await scene.catalog.fork([], origin) == ()


class TestRollback:
    async def test_the_actor_stands_at_the_earlier_place_and_the_old_branch_stays(self, scene):
        made = await scene.create("alice")
        actor, one = await scene.turn(made, (4,), (5,))
        later, two = await scene.turn(actor, (6,), (7,))
        back, version = await scene.catalog.rollback(
            made.id,
            Origin(segment=one.segment, position=one.position, handle=one.handle),
            seed=None,
            guard=Guard(),
        )

        assert (back.position, back.head, back.generation) == (5, 3, later.generation + 1)
        assert back.seed == made.seed
        assert back == await scene.catalog.actor("alice")
        assert (version.op, version.seq, version.position) == (Op.ROLLBACK, 3, 5)
        assert version.parents == ("alice@1",)
        assert version == await scene.catalog.version("alice@3")
        again, _ = await scene.turn(back, (8,), (9,))
        assert await scene.tokens(again) == [1, 2, 3, 4, 5, 8, 9]
        old = await scene.catalog.transcript(two.segment, 0, two.position)
        assert [token for run in old for token in run.tokens] == [1, 2, 3, 4, 5, 6, 7]

    async def test_to_a_bare_position(self, scene):
        made = await scene.create("alice")
        actor, _ = await scene.turn(made, (4,), (5, 6))
        back, version = await scene.catalog.rollback(
            made.id,
            Origin(segment=actor.segment, position=5, handle=None),
            seed=11,
            guard=Guard(),
        )

        assert (back.position, back.seed, back.head) == (5, 11, 3)
        assert version.parents == ("alice@2",)
        assert (await scene.catalog.version("alice@2")).hidden

    async def test_lifts_a_quarantine_and_needs_a_closed_turn(self, scene):
        made = await scene.create("alice")
        origin = Origin(segment=made.segment, position=3, handle="alice@0")
        turn = await scene.begin(made)
        with pytest.raises(Conflict):
            await scene.catalog.rollback(made.id, origin, seed=None, guard=Guard())
        await scene.end(turn, 3)
        await scene.catalog.quarantine(made.id, "bad", guard=Guard())

        back, _ = await scene.catalog.rollback(made.id, origin, seed=None, guard=Guard())

        assert back.quarantine is None
        await scene.turn(back, (), (5,))

    async def test_into_the_part_before_the_fork(self, scene):
        made = await scene.create("alice")
        child = await scene.fork("bob", Origin(segment=made.segment, position=3, handle=None))
        child, _ = await scene.turn(child, (4,))
        back, version = await scene.catalog.rollback(
            child.id,
            Origin(segment=child.segment, position=1, handle=None),
            seed=None,
            guard=Guard(),
        )

        assert await scene.tokens(back) == [1]
        assert version.parents == ("alice@1",)
        assert await scene.catalog.actor("alice") == made


class TestMutate:
    async def test_opens_a_rooted_segment_with_its_image(self, scene, make_image):
        made = await scene.create("alice")
        actor, _ = await scene.turn(made, (4,), (5,))
        changed, version = await scene.mutate(
            actor,
            "decay",
            params={"alpha": 0.5},
            select={"layers": [1]},
            agent="someone",
            reason="to see",
            before="blake3:aa",
        )

        assert (changed.position, changed.head) == (5, 2)
        assert changed.generation == actor.generation + 1
        segment = await scene.catalog.segment(changed.segment)
        assert (segment.rooted, segment.parent, segment.position) == (True, actor.segment, 5)
        assert (version.op, version.parents, version.position) == (Op.MUTATE, ("alice@1",), 5)
        assert (version.rule, version.rule_version) == ("decay", 1)
        assert (version.params, version.select) == ({"alpha": 0.5}, {"layers": [1]})
        assert (version.agent, version.reason, version.before) == ("someone", "to see", "blake3:aa")
        assert version == await scene.catalog.version("alice@2")
        kept = await scene.catalog.image_at(changed.segment, 5)
        assert (version.digest, version.nbytes) == (kept.digest, kept.nbytes)
        assert await scene.catalog.image_at(actor.segment, 5) is None
        assert (await scene.catalog.version("alice@1")).digest is None
        after, _ = await scene.turn(changed, (), (6,))
        assert await scene.tokens(after) == [1, 2, 3, 4, 5, 6]

    async def test_blends_name_all_parents(self, scene):
        alice, bob = await scene.create("alice"), await scene.create("bob")
        await scene.catalog.update(bob.id, guard=Guard(), name="rob")
        changed, version = await scene.mutate(
            alice, "blend", parents=("rob@0", f"{alice.id}@0"), weights=(0.25, 0.5)
        )

        assert version.parents == ("alice@0", "rob@0", "alice@0")
        with pytest.raises(VersionNotFound):
            await scene.mutate(changed, "blend", parents=("nobody@0",))
        assert await scene.catalog.actor("alice") == changed

    async def test_a_blend_with_drift_drifts(self, scene):
        alice, bob = await scene.create("alice"), await scene.create("bob")
        bob = await scene.catalog.update(bob.id, guard=Guard(), drift=True)
        await scene.turn(bob, (4,))
        changed, version = await scene.mutate(alice, "blend", parents=("bob@1",), weights=(1.0,))

        assert changed.drift
        assert version.drift

    async def test_needs_a_closed_turn(self, scene):
        made = await scene.create("alice")
        await scene.begin(made)
        with pytest.raises(Conflict):
            await scene.mutate(made)

    async def test_two_in_a_row_at_one_position(self, scene):
        made = await scene.create("alice")
        once, first = await scene.mutate(made)
        twice, second = await scene.mutate(once)

        assert second.parents == (first.handle,)
        assert (await scene.catalog.version_at(twice.segment, 3)).handle == second.handle
        assert (await scene.catalog.nearest_image(twice.segment, 3))[1].digest == second.digest
        assert (await scene.catalog.nearest_image(once.segment, 3))[1].digest == first.digest


class TestHandles:
    async def test_parents_are_shown_under_the_present_name(self, scene):
        made = await scene.create("alice")
        child = await scene.fork("bob", Origin(segment=made.segment, position=3, handle="alice@0"))
        await scene.catalog.update(made.id, guard=Guard(), name="anna")

        assert (await scene.catalog.actor("bob")).parent == "anna@0"
        assert (await scene.catalog.version("bob@0")).parents == ("anna@0",)
        assert (await scene.catalog.version("anna@0")).handle == "anna@0"
        page, _ = await scene.catalog.versions(child.id, None, 10)
        assert page[0].parents == ("anna@0",)

    async def test_deleted_parents_are_shown_by_the_id_that_still_finds_them(self, scene):
        made = await scene.create("alice")
        child = await scene.fork("bob", Origin(segment=made.segment, position=2, handle=None))
        await scene.catalog.delete(made.id, guard=Guard())

        shown = (await scene.catalog.actor("bob")).parent
        assert shown == f"{made.id}@1"
        assert (await scene.catalog.version("bob@0")).parents == (shown,)
        assert (await scene.catalog.version(shown)).position == 2
        assert await scene.tokens(child) == [1, 2]
        with pytest.raises(VersionNotFound):
            await scene.catalog.version("alice@1")

        await scene.create("alice")

        assert (await scene.catalog.actor("bob")).parent == f"{made.id}@1"
        assert (await scene.catalog.version("bob@0")).parents == (f"{made.id}@1",)
        assert (await scene.catalog.version(f"{made.id}@1")).handle == f"{made.id}@1"
        _, edges, _ = await scene.catalog.lineage("bob@0", "ancestors", 9, 9)
        assert edges[0][:2] == (f"{made.id}@1", "bob@0")

    async def test_seq_is_never_used_again(self, scene):
        made = await scene.create("alice")
        await scene.fork("bob", Origin(segment=made.segment, position=2, handle=None))
        await scene.turn(made, (), (5,))
        back, version = await scene.catalog.rollback(
            made.id,
            Origin(segment=made.segment, position=3, handle="alice@0"),
            seed=None,
            guard=Guard(),
        )
        assert version.seq == 3
        assert (await scene.turn(back, (), (6,)))[1].seq == 4
