from __future__ import annotations

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin
from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.vocab import Op


async def family(scene):
    """alice 0-1-2; bob from alice@1 and 0-1; carl from bob@1; alice rolled back to 1 is 3-4."""
    alice = await scene.create("alice", (1,))
    alice, _ = await scene.turn(alice, (), (2,))
    alice, _ = await scene.turn(alice, (), (3,))
    bob = await scene.fork_version("bob", "alice@1")
    bob, _ = await scene.turn(bob, (), (4,))
    carl = await scene.fork_version("carl", "bob@1")
    origin = Origin(segment=alice.segment, position=2, handle="alice@1")
    alice, _ = await scene.catalog.rollback(alice.id, origin, seed=None, guard=Guard())
    alice, _ = await scene.turn(alice, (), (5,))
    return alice, bob, carl


async def graph(scene, handle: str, direction: str, depth: int = 99, limit: int = 99):
    nodes, edges, cut = await scene.catalog.lineage(handle, direction, depth, limit)
    assert len({node.handle for node in nodes}) == len(nodes)
    return [node.handle for node in nodes], edges, cut


async def test_ancestors_come_nearest_first(scene):
    await family(scene)
    nodes, edges, cut = await graph(scene, "carl@0", "ancestors")

    assert nodes == ["carl@0", "bob@1", "bob@0", "alice@1", "alice@0"]
    assert edges == (
        ("bob@1", "carl@0", Op.FORK),
        ("bob@0", "bob@1", Op.TURN),
        ("alice@1", "bob@0", Op.FORK),
        ("alice@0", "alice@1", Op.TURN),
    )
    assert not cut


async def test_descendants_come_nearest_first(scene):
    await family(scene)
    nodes, edges, cut = await graph(scene, "alice@1", "descendants")

    assert nodes == ["alice@1", "alice@2", "bob@0", "alice@3", "bob@1", "alice@4", "carl@0"]
    assert ("alice@1", "alice@3", Op.ROLLBACK) in edges
    assert len(edges) == 6
    assert not cut


async def test_both_directions_leave_siblings_out(scene):
    await family(scene)
    nodes, _, _ = await graph(scene, "bob@0", "both")

    assert nodes == ["bob@0", "alice@1", "alice@0", "bob@1", "carl@0"]


async def test_depth_and_limit_cut_and_say_so(scene):
    await family(scene)
    nodes, edges, cut = await graph(scene, "carl@0", "ancestors", depth=2)
    assert (nodes, len(edges), cut) == (["carl@0", "bob@1", "bob@0"], 2, True)
    nodes, edges, cut = await graph(scene, "alice@1", "descendants", limit=3)
    assert (nodes, len(edges), cut) == (["alice@1", "alice@2", "bob@0"], 2, True)
    nodes, _, cut = await graph(scene, "carl@0", "ancestors", depth=4, limit=5)
    assert (len(nodes), cut) == (5, False)
    nodes, _, cut = await graph(scene, "carl@0", "both", depth=0)
    assert (nodes, cut) == (["carl@0"], True)
    with pytest.raises(VersionNotFound):
        await graph(scene, "nobody@0", "both")


async def test_a_limit_ends_inside_a_level(scene):
    await scene.create("alice", (1,))
    for n in range(9):
        await scene.fork_version(f"child{n}", "alice@0")
    nodes, edges, cut = await graph(scene, "alice@0", "descendants", limit=4)

    assert (nodes, len(edges)) == (["alice@0", "child0@0", "child1@0", "child2@0"], 3)
    assert cut
    assert (await graph(scene, "alice@0", "descendants", limit=10))[2] is False


async def test_common_ancestors(scene):
    await family(scene)
    await scene.create("stranger")

    async def common(a: str, b: str) -> str | None:
        found = [await scene.catalog.common_ancestor(*pair) for pair in ((a, b), (b, a))]
        assert found[0] == found[1]
        return None if found[0] is None else found[0].handle

    assert await common("carl@0", "alice@2") == "alice@1"
    assert await common("carl@0", "alice@4") == "alice@1"
    assert await common("carl@0", "bob@0") == "bob@0"
    assert await common("alice@0", "carl@0") == "alice@0"
    assert await common("bob@1", "bob@1") == "bob@1"
    assert await common("carl@0", "stranger@0") is None
    with pytest.raises(VersionNotFound):
        await common("carl@0", "nobody@0")


async def test_a_late_snapshot_of_an_old_place_is_no_ancestor_of_what_came_before(scene):
    alice = await scene.create("alice", (1,))
    alice, _ = await scene.turn(alice, (), (2, 3))
    await scene.catalog.snapshot(alice.id, alice.segment, 2, tag=None, labels={}, guard=Guard())

    assert (await scene.catalog.common_ancestor("alice@1", "alice@2")).handle == "alice@0"


async def test_the_anchor_of_two_forks_is_their_common_ancestor(scene):
    alice = await scene.create("alice", (1, 2, 3, 4))
    origin = Origin(segment=alice.segment, position=2, handle=None)
    await scene.fork("bob", origin, prompt=(9,))
    await scene.fork("carl", origin, prompt=(8,))

    found = await scene.catalog.common_ancestor("bob@1", "carl@1")

    assert (found.hidden, found.position) == (True, 2)


async def test_blends_join_histories(scene):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    bob, _ = await scene.turn(bob, (), (7,))
    alice, _ = await scene.mutate(alice, "blend", parents=("bob@1",), weights=(0.5,))
    alice, _ = await scene.turn(alice, (), (8,))
    bob, _ = await scene.turn(bob, (), (9,))

    assert (await scene.catalog.common_ancestor("alice@2", "bob@2")).handle == "bob@1"
    assert (await scene.catalog.common_ancestor("bob@0", "alice@2")).handle == "bob@0"
    nodes, edges, _ = await graph(scene, "alice@2", "ancestors")
    assert nodes == ["alice@2", "alice@1", "alice@0", "bob@1", "bob@0"]
    assert ("bob@1", "alice@1", Op.MUTATE) in edges
    nodes, _, _ = await graph(scene, "bob@0", "descendants")
    assert set(nodes) == {"bob@0", "bob@1", "bob@2", "alice@1", "alice@2"}


async def test_blame_names_the_last_rule_that_touched_a_layer(scene):
    alice = await scene.create("alice")
    alice, _ = await scene.mutate(alice, "decay")
    alice, _ = await scene.turn(alice, (), (4,))
    alice, _ = await scene.mutate(alice, "scale", select={"layers": [0, 2], "families": ["wkv"]})
    bob = await scene.fork_version("bob", "alice@3")
    bob, _ = await scene.turn(bob, (), (5,))
    bob, _ = await scene.mutate(bob, "zero", select={"layers": []})

    async def blame(handle: str, layer: int) -> str | None:
        found = await scene.catalog.blame(handle, layer)
        return None if found is None else found.handle

    assert await blame("alice@0", 0) is None
    assert await blame("alice@1", 0) == "alice@1"
    assert await blame("alice@2", 2) == "alice@1"
    assert [await blame("alice@3", layer) for layer in range(3)] == [
        "alice@3",
        "alice@1",
        "alice@3",
    ]
    assert [await blame("bob@2", layer) for layer in range(3)] == ["alice@3", "alice@1", "alice@3"]
    with pytest.raises(VersionNotFound):
        await blame("nobody@0", 0)


async def test_lineage_outlives_the_actors_in_it(scene):
    alice, bob, carl = await family(scene)
    await scene.catalog.delete(alice.id, guard=Guard())
    await scene.catalog.delete(bob.id, guard=Guard())

    nodes, _, _ = await graph(scene, "carl@0", "ancestors")

    a, b = alice.id, bob.id
    assert nodes == ["carl@0", f"{b}@1", f"{b}@0", f"{a}@1", f"{a}@0"]
    for handle in nodes:
        assert (await scene.catalog.version(handle)).handle == handle
    assert await scene.tokens(carl) == [1, 2, 4]
