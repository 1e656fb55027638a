from __future__ import annotations

import random

import pytest

from statevisor.hypervisor.catalog_port import Guard, Origin
from statevisor.hypervisor.errors import VersionNotFound


async def grown(scene, seed: int, steps: int = 30) -> list[str]:
    """A family that talks, forks, blends, rolls back and takes snapshots; its versions' ids."""
    dice = random.Random(seed)
    actors = [await scene.create("a0")]
    for step in range(1, steps):
        at = dice.randrange(len(actors))
        actor = actors[at]
        match dice.choice(("turn", "turn", "fork", "blend", "rollback", "snapshot")):
            case "turn":
                actors[at], _ = await scene.turn(actor, (), (step,))
            case "fork":
                actors.append(await scene.fork_version(f"a{step}", f"{actor.id}@{actor.head}"))
            case "blend":
                other = dice.choice(actors)
                parents = (f"{other.id}@{other.head}",)
                actors[at], _ = await scene.mutate(actor, "blend", parents=parents)
            case "rollback":
                origin = Origin(
                    segment=actor.segment, position=dice.randint(3, actor.position), handle=None
                )
                actors[at], _ = await scene.catalog.rollback(
                    actor.id, origin, seed=None, guard=Guard()
                )
            case "snapshot":
                await scene.catalog.snapshot(
                    actor.id, actor.segment, actor.position, tag=None, labels={}, guard=Guard()
                )
    return [f"{one.id}@{one.head}" for one in actors]


async def walked(scene, handle: str, direction: str, limit: int):
    """All parts of a walk."""
    nodes, edges, start = [], [], handle
    while start:
        part = await scene.catalog.walk(start, direction, limit)
        assert 0 < len(part.nodes) <= limit
        nodes, edges, start = [*nodes, *part.nodes], [*edges, *part.edges], part.rest
    return nodes, edges


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("direction", ["ancestors", "descendants"])
async def test_a_walk_in_parts_meets_all_that_a_graph_shows(scene, seed, direction):
    for handle in await grown(scene, seed):
        graph, lines, cut = await scene.catalog.lineage(handle, direction, 10**6, 10**6)
        assert not cut
        for limit in (1, 3, 999):
            nodes, edges = await walked(scene, handle, direction, limit)

            assert len(nodes) == len(graph)  # none twice
            assert {node.handle for node in nodes} == {node.handle for node in graph}
            assert len(edges) == len(set(edges))
            assert set(edges) == set(lines)


async def test_a_walk_goes_by_age(scene):
    alice = await scene.create("alice")
    alice, _ = await scene.turn(alice, (), (4,))
    await scene.fork_version("bob", "alice@0")
    alice, _ = await scene.turn(alice, (), (5,))

    down, _ = await walked(scene, "alice@0", "descendants", 2)
    up, _ = await walked(scene, "alice@2", "ancestors", 2)

    assert [node.handle for node in down] == ["alice@0", "alice@1", "bob@0", "alice@2"]
    assert [node.handle for node in up] == ["alice@2", "alice@1", "alice@0"]


async def test_a_walk_from_nowhere_is_refused(scene):
    with pytest.raises(VersionNotFound):
        await scene.catalog.walk("nobody@0", "ancestors", 9)


@pytest.mark.parametrize("seed", range(4))
async def test_an_ancestor_is_its_own_common_ancestor_with_what_comes_from_it(scene, seed):
    heads = await grown(scene, seed)
    known = {
        node.handle for head in heads for node in (await walked(scene, head, "ancestors", 9))[0]
    }
    chosen = random.Random(seed).sample(sorted(known), 8)
    told = []
    for a in chosen:
        for b in chosen:
            common = await scene.catalog.common_ancestor(a, b)
            told.append(await scene.catalog.is_ancestor(a, b))
            assert told[-1] == (common is not None and common.handle == a)
    assert {True, False} == set(told)
    for head in heads:
        for node in (await walked(scene, head, "ancestors", 9))[0]:
            assert await scene.catalog.is_ancestor(node.handle, head)
    with pytest.raises(VersionNotFound):
        await scene.catalog.is_ancestor("nobody@0", heads[0])
