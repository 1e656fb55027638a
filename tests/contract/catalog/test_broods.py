"""Children of a fork that have done nothing: every question is answered as of any other actor.

Each is asked before one of them does something, after it, and after a restart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statevisor.hypervisor.catalog_port import ActorQuery, Guard, Origin, VersionQuery
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorNotFound,
    Fenced,
    GenerationConflict,
    NotFound,
    VersionNotFound,
)
from statevisor.hypervisor.ids import nth_seed
from statevisor.hypervisor.records import ActorRecord
from statevisor.hypervisor.vocab import Op

Ask = Callable[[Any, "Family"], Awaitable[Any]]


class Family:
    """An actor with an image and a mutation, five children behind it, and one beside them."""

    def __init__(self, parent: ActorRecord, origin: Origin) -> None:
        self.parent = parent
        self.origin = origin
        self.children: tuple[ActorRecord, ...] = ()
        self.other: ActorRecord

    @property
    def ids(self) -> list[str]:
        return [child.id for child in self.children]


@pytest.fixture
async def family(scene, make_image) -> Family:
    made = await scene.create("parent", (1, 2, 3))
    scene.clock[0] += 10
    actor, _ = await scene.mutate(made)
    scene.clock[0] += 10
    actor, version = await scene.turn(actor, (4,), (5, 6))
    await scene.catalog.add_image(actor.segment, 6, make_image(77))
    found = Family(actor, Origin(segment=actor.segment, position=6, handle=version.handle))
    scene.clock[0] += 10
    found.children = await scene.breed(5, found.origin, labels={"team": "red"})
    scene.clock[0] += 10
    found.other = await scene.create("other", (9,))
    return found


async def one_does_something(scene, family: Family) -> None:
    """The third has rows of its own from here on, and a second version."""
    third = await scene.catalog.actor(family.ids[2])
    await scene.turn(third, (7,), (8,))


@pytest.fixture(params=["at rest", "one of them woke", "after a restart"])
async def moment(request, scene, family) -> str:
    if request.param != "at rest":
        await one_does_something(scene, family)
    if request.param == "after a restart":
        await scene.restart()
    return request.param


async def test_what_a_fork_returns_is_found_by_id_and_name(scene, family):
    for n, child in enumerate(family.children):
        assert (child.seed, child.parent) == (nth_seed(5, n), "parent@2")
        assert (child.position, child.head, child.generation, child.epoch) == (6, 0, 1, 1)
        assert child.segment == family.children[0].segment + n > family.parent.segment
        assert await scene.catalog.actor(child.id) == child
        assert await scene.catalog.actor(child.name) == child
    await scene.restart()
    assert await scene.catalog.actor(family.children[4].name) == family.children[4]
    for key in (family.ids[0][:-1] + "z", "actor-zzzzzzzzzz", family.children[0].name.upper()):
        with pytest.raises(ActorNotFound):
            await scene.catalog.actor(key)


async def test_lists_have_them_in_order_and_under_all_filters(scene, family, moment):
    everyone = sorted([family.parent.id, *family.ids, family.other.id])

    async def pages(limit: int, **query: Any) -> list[str]:
        found: list[str] = []
        more = True
        while more:
            after = found[-1] if found else None
            asked = ActorQuery(limit=limit, after=after, **query)
            page, more = await scene.catalog.actors(asked)
            assert page or not more
            found += [one.id for one in page]
        return found

    for limit in (1, 2, 3, 50):
        assert await pages(limit) == everyone
    assert await pages(2, label=("team", None)) == family.ids
    assert await pages(2, label=("team", "red")) == family.ids
    assert await pages(2, label=("team", "blue")) == []
    assert await pages(2, model="demo") == everyone
    assert await pages(2, model="other") == []
    assert await pages(2, q="ACTOR-") == family.ids
    assert await pages(2, q=family.children[1].name[6:9]) == [family.ids[1]]
    wanted = frozenset((family.ids[1], family.ids[2], family.other.id))
    assert await pages(2, ids=wanted) == sorted(wanted)
    assert await pages(2, exclude=wanted) == [one for one in everyone if one not in wanted]
    for after in ("", "act_", family.ids[1], "act_zz", "b", family.ids[1][:-3]):
        assert await pages(3, ids=None) == everyone
        page, _ = await scene.catalog.actors(ActorQuery(after=after, limit=50))
        assert [one.id for one in page] == [one for one in everyone if one > after], after
    assert await scene.catalog.count_actors() == 7


async def test_a_filter_finds_few_among_many(scene, family):
    for _ in range(3):
        await scene.breed(2, family.origin)
    await scene.breed(2, family.origin, labels={"team": "blue"})
    last = await scene.breed(2, family.origin, model="large")
    for query, expected in (
        ({"label": ("team", "red")}, family.ids),
        ({"label": ("team", None), "after": family.ids[3]}, 3),
        ({"model": "large"}, [one.id for one in last]),
        ({"q": last[1].name}, [last[1].id]),
        ({"q": family.children[3].name, "after": family.ids[2]}, [family.ids[3]]),
        ({"q": family.children[3].name, "after": family.ids[3]}, []),
        ({"q": "ACTOR-", "label": ("team", "blue")}, 2),
    ):
        page, more = await scene.catalog.actors(ActorQuery(**query))
        found = [one.id for one in page]
        assert (len(found) if isinstance(expected, int) else found, more) == (expected, False)


async def test_those_made_last_come_first(scene, family):
    recent = [one.id for one in await scene.catalog.recent(4)]
    assert recent == [family.other.id, *reversed(family.ids[2:])]
    scene.clock[0] += 10
    await one_does_something(scene, family)
    recent = [one.id for one in await scene.catalog.recent(4)]
    assert recent == [family.ids[2], family.other.id, family.ids[4], family.ids[3]]


async def test_names_stay_unique(scene, family, moment):
    child, woken = family.children[0], family.children[2]
    for name in (child.name, woken.name):
        with pytest.raises(ActorExists):
            await scene.create(name)
        with pytest.raises(ActorExists):
            await scene.fork(name, family.origin)
        with pytest.raises(ActorExists):
            await scene.catalog.update(family.other.id, name=name, guard=Guard())
    await scene.catalog.update(child.id, name="new", guard=Guard())
    assert (await scene.create(child.name)).name == child.name
    await scene.catalog.delete(woken.id, guard=Guard())
    again = await scene.create(woken.name)
    assert await scene.catalog.actor(woken.name) == again
    taken = scene.brood(3)
    await scene.create(taken[1].name)
    before = await scene.catalog.count_actors()
    with pytest.raises(ActorExists):
        await scene.catalog.fork(taken, family.origin)
    with pytest.raises(ActorExists):
        await scene.catalog.fork([scene.new("twice"), scene.new("twice")], family.origin)
    assert await scene.catalog.count_actors() == before


async def test_an_id_is_nobody_elses(scene, family, moment):
    for n in (1, 2):
        with pytest.raises(ActorExists):
            await scene.catalog.create(scene.new("x", id=family.ids[n]), ())
        with pytest.raises(ActorExists):
            await scene.catalog.fork([scene.new("x", id=family.ids[n])], family.origin)


async def test_versions_are_found_in_every_way(scene, family, moment):
    for n, child in enumerate(family.children):
        version = await scene.catalog.version(f"{child.id}@0")
        assert version == await scene.catalog.version(f"{child.name}@0")
        assert (version.handle, version.op) == (f"{child.name}@0", Op.FORK)
        assert (version.parents, version.position) == (("parent@2",), 6)
        assert version.digest == (await scene.catalog.version("parent@2")).digest is not None
        assert (version.tags, version.labels, version.hidden) == ((), {}, False)
        assert version.created_at == child.created_at
        page, more = await scene.catalog.versions(child.id, None, 1)
        woken = n == 2 and moment != "at rest"
        assert (page, more) == ((version,), woken)
        page, _ = await scene.catalog.versions(child.id, 0, 9)
        assert len(page) == int(woken)
        assert await scene.catalog.as_of(child.id, child.created_at) == version
        assert await scene.catalog.as_of(child.id, child.created_at - 1) is None
        assert await scene.catalog.version_at(child.segment, 6) == version
        before = await scene.catalog.version_at(child.segment, 3)
        assert before is not None
        assert before.handle == "parent@1"
        if not woken:
            for handle in (f"{child.name}@1", f"{child.id}@1"):
                with pytest.raises(VersionNotFound):
                    await scene.catalog.version(handle)


async def test_histories_are_those_of_the_parent(scene, family, moment, make_image):
    for n, child in enumerate(family.children):
        woken = n == 2 and moment != "at rest"
        segment = await scene.catalog.segment(child.segment)
        assert (segment.parent, segment.position) == (family.parent.segment, 6)
        assert (segment.actor_id, segment.rooted) == (child.id, False)
        path = await scene.catalog.path(child.segment, 9)
        assert path[0] == segment
        assert path[1:] == await scene.catalog.path(family.parent.segment, 9)
        for limit in (1, 2):
            assert await scene.catalog.path(child.segment, limit) == path[:limit]
        tokens = [1, 2, 3, 4, 5, 6] + [7, 8] * woken
        assert await scene.tokens(await scene.catalog.actor(child.id)) == tokens
        runs = await scene.catalog.transcript(child.segment, 2, 5)
        assert [token for run in runs for token in run.tokens] == [3, 4, 5]
        assert await scene.catalog.nearest_image(child.segment, 6) == (6, make_image(77))
        position, _ = await scene.catalog.nearest_image(child.segment, 5)
        assert position == 3
        assert await scene.catalog.image_at(child.segment, 6) == make_image(77)
        assert await scene.catalog.image_at(child.segment, 5) is None
        standing = await scene.catalog.standing(child.segment, 5, 3)
        assert (standing.image, standing.pending) == (None, (4, 5))
    with pytest.raises(NotFound):
        await scene.catalog.segment(family.children[4].segment + 9)


async def test_lineage_runs_through_them(scene, family, moment):
    handles = [f"{child.name}@0" for child in family.children]
    woken = [f"{family.children[2].name}@1"] if moment != "at rest" else []
    nodes, edges, cut = await scene.catalog.lineage("parent@2", "descendants", 5, 50)
    assert [one.handle for one in nodes] == ["parent@2", *handles, *woken]
    assert [(a, b) for a, b, _ in edges][:5] == [("parent@2", handle) for handle in handles]
    assert not cut
    nodes, _, cut = await scene.catalog.lineage("parent@2", "descendants", 5, 3)
    assert ([one.handle for one in nodes], cut) == (["parent@2", *handles[:2]], True)
    nodes, _, _ = await scene.catalog.lineage(handles[1], "both", 5, 50)
    assert [one.handle for one in nodes] == [handles[1], "parent@2", "parent@1", "parent@0"]

    for limit in (1, 2, 50):
        seen: list[str] = []
        begin: Any = "parent@0"
        while begin:
            part = await scene.catalog.walk(begin, "descendants", limit)
            seen += [one.handle for one in part.nodes]
            begin = part.rest
        assert seen == ["parent@0", "parent@1", "parent@2", *handles, *woken]
    walk = await scene.catalog.walk(handles[3], "ancestors", 50)
    assert [one.handle for one in walk.nodes] == [handles[3], "parent@2", "parent@1", "parent@0"]
    assert walk.edges[0] == ("parent@2", handles[3], Op.FORK)

    for a, b, shared in (
        (handles[0], handles[1], "parent@2"),
        (handles[0], handles[2], "parent@2"),
        (handles[1], "parent@1", "parent@1"),
        (handles[1], handles[1], handles[1]),
        ("other@0", handles[1], None),
    ):
        found = await scene.catalog.common_ancestor(a, b)
        assert (None if found is None else found.handle) == shared
        assert await scene.catalog.is_ancestor(a, b) is (a == b)
        assert await scene.catalog.is_ancestor(b, a) is (b == shared)
    assert await scene.catalog.is_ancestor("parent@0", handles[4])
    for handle in (handles[0], handles[2]):
        made = await scene.catalog.blame(handle, 1)
        assert made is not None
        assert made.handle == "parent@1"


async def test_searches_page_through_them(scene, family, moment):
    handles = [f"{child.name}@0" for child in family.children]
    born = family.children[0].created_at

    async def search(limit: int, **query: Any) -> list[str]:
        found: list[str] = []
        more = True
        while more:
            after = found[-1] if found else None
            page, more = await scene.catalog.search(VersionQuery(after=after, limit=limit, **query))
            found += [one.handle for one in page]
        return found

    for limit in (1, 2, 50):
        assert await search(limit, op=Op.FORK) == handles
        assert await search(limit, since_us=born, until_us=born + 1) == handles
        assert await search(limit, until_us=born) == ["parent@0", "parent@1", "parent@2"]
        assert await search(limit, op=Op.FORK, since_us=born + 1) == []
        woken = [f"{family.children[2].name}@1"] if moment != "at rest" else []
        everything = ["parent@0", "parent@1", "parent@2", *handles, "other@0", *woken]
        assert await search(limit) == everything
    assert await search(50, label=("team", None)) == []  # an actor's labels are not its versions'


async def test_a_deleted_parent_stays_as_long_as_they_wait(scene, family, make_image):
    assert (family.parent.segment, 6) in await scene.catalog.anchors()
    await scene.catalog.delete(family.parent.id, guard=Guard())
    scene.clock[0] += 10
    assert (await scene.catalog.rubbish(grace_us=0)).actors == ()
    await scene.catalog.sweep(grace_us=0)
    for child in family.children:
        assert (await scene.catalog.actor(child.id)).parent == f"{family.parent.id}@2"
        assert await scene.catalog.nearest_image(child.segment, 6) == (6, make_image(77))
    for child in family.children[:4]:
        await scene.catalog.delete(child.id, guard=Guard())
    await scene.catalog.sweep(grace_us=0)
    assert await scene.tokens(await scene.catalog.actor(family.ids[4])) == [1, 2, 3, 4, 5, 6]
    await scene.catalog.delete(family.ids[4], guard=Guard())
    gone = (await scene.catalog.rubbish(grace_us=0)).actors
    assert gone == tuple(sorted([family.parent.id, family.ids[4]]))
    await scene.catalog.sweep(grace_us=0)
    assert await scene.catalog.count_actors() == 1
    assert await scene.catalog.check() == ()
    assert await scene.catalog.anchors() == {}


async def test_a_new_owner_fences_the_writers_of_all(scene, family, moment):
    stale = Guard(epoch=1)
    await scene.catalog.claim("next")
    for child in family.children:
        assert (await scene.catalog.actor(child.id)).epoch == 2
        with pytest.raises(Fenced):
            await scene.catalog.update(child.id, pinned=True, guard=stale)
    changed = await scene.catalog.update(family.ids[0], pinned=True, guard=Guard(epoch=2))
    assert (changed.epoch, changed.generation) == (2, 2)


CHANGES: dict[str, Ask] = {
    "turn": lambda s, f: s.turn(f.children[1], (7,), (8,)),
    "tag": lambda s, f: s.catalog.snapshot(
        f.ids[1], f.children[1].segment, 6, tag="t", labels={"a": "b"}, guard=Guard()
    ),
    "mutate": lambda s, f: s.mutate(f.children[1]),
    "blend": lambda s, f: s.mutate(f.other, "blend", parents=(f"{f.ids[1]}@0",), weights=(0.5,)),
    "rollback": lambda s, f: s.catalog.rollback(
        f.ids[1],
        Origin(segment=f.children[1].segment, position=2, handle=None),
        seed=None,
        guard=Guard(),
    ),
    "pin": lambda s, f: s.catalog.update(f.ids[1], pinned=True, guard=Guard(generation=1)),
    "labels": lambda s, f: s.catalog.update(f.ids[1], labels={"x": "y"}, guard=Guard()),
    "ttl": lambda s, f: s.catalog.update(f.ids[1], ttl_s=9, guard=Guard()),
    "rename": lambda s, f: s.catalog.update(f.ids[1], name="called", guard=Guard()),
    "quarantine": lambda s, f: s.catalog.quarantine(f.ids[1], "bad", guard=Guard()),
    "delete": lambda s, f: s.catalog.delete(f.ids[1], guard=Guard()),
    "fork": lambda s, f: s.fork_version("grandchild", f"{f.children[1].name}@0"),
    "bare fork": lambda s, f: s.fork(
        "grandchild", Origin(segment=f.children[1].segment, position=6, handle=None)
    ),
    "brood of it": lambda s, f: s.breed(
        3, Origin(segment=f.children[1].segment, position=6, handle=f"{f.ids[1]}@0")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_one_does_leaves_the_others_as_they_are(scene, family, change):
    others = [child for n, child in enumerate(family.children) if n != 1]
    versions = [await scene.catalog.version(f"{child.id}@0") for child in others]

    await CHANGES[change](scene, family)
    await scene.restart()

    assert [await scene.catalog.actor(child.id) for child in others] == others
    assert [await scene.catalog.version(f"{child.name}@0") for child in others] == versions
    one = await scene.catalog.version(f"{family.ids[1]}@0")
    assert (one.segment, one.position) == (family.children[1].segment, 6)
    found, _, _ = await scene.catalog.lineage("parent@2", "descendants", 1, 50)
    assert {one.actor_id for one in found} >= set(family.ids)
    assert await scene.catalog.check() == ()


@pytest.mark.parametrize("change", ["pin", "delete", "tag"])
async def test_a_change_that_is_refused_changes_nothing(scene, family, change):
    guard = Guard(generation=7)
    refused = {
        "pin": lambda: scene.catalog.update(family.ids[1], pinned=True, guard=guard),
        "delete": lambda: scene.catalog.delete(family.ids[1], guard=guard),
        "tag": lambda: scene.catalog.snapshot(
            family.ids[1], family.children[1].segment, 6, tag="t", labels={}, guard=guard
        ),
    }
    with pytest.raises(GenerationConflict):
        await refused[change]()
    assert await scene.catalog.actor(family.ids[1]) == family.children[1]
    assert await scene.catalog.check() == ()


async def test_places_are_never_used_again(scene, family):
    """Segments and versions of children that are gone are not those of later ones."""
    used = {child.segment for child in family.children}
    for key in family.ids:
        await scene.catalog.delete(key, guard=Guard())
    await scene.catalog.sweep(grace_us=0)
    await scene.restart()
    later = await scene.breed(5, family.origin)
    assert min(child.segment for child in later) > max(used)
    made = await scene.create("last")
    assert made.segment > max(child.segment for child in later)
    assert await scene.catalog.check() == ()


async def test_an_image_of_one_is_kept_under_its_place(scene, family, make_image):
    child = family.children[1]
    await scene.catalog.forget([(family.parent.segment, 6)])
    await scene.catalog.add_image(child.segment, 6, make_image(80))
    assert await scene.catalog.image_at(family.parent.segment, 6) == make_image(80)
    assert await scene.catalog.keep_image(child.segment, 6, make_image(81)) == make_image(80)
    assert (await scene.catalog.version(f"{family.ids[3]}@0")).digest == make_image(80).digest
    await scene.catalog.add_image(child.segment, 7, make_image(82))
    assert await scene.catalog.image_at(child.segment, 7) == make_image(82)
    assert await scene.catalog.image_at(family.children[2].segment, 7) is None


async def test_grandchildren_of_one_that_did_nothing(scene, family, moment):
    child = await scene.catalog.actor(family.ids[1])
    made = await scene.breed(2, Origin(segment=child.segment, position=6, handle=None))
    assert {one.parent for one in made} == {f"{child.name}@0"}
    for one in made:
        assert await scene.tokens(one) == [1, 2, 3, 4, 5, 6]
    shared = await scene.catalog.common_ancestor(f"{made[0].id}@0", f"{made[1].id}@0")
    assert shared is not None
    assert shared.handle == f"{child.name}@0"
    nodes, _, _ = await scene.catalog.lineage("parent@2", "descendants", 9, 50)
    assert {one.actor_id for one in nodes} >= {*family.ids, *(one.id for one in made)}


async def test_those_with_names_or_seeds_of_their_own_are_children_too(scene, family):
    children = scene.brood(4, seed=9)
    given = [
        scene.new("first", id=children[0].id, seed=1),
        scene.new(children[1].name, id=children[1].id, seed=77),
        scene.new(children[2].name, id=children[2].id, seed=77),
        scene.new("last", id=children[3].id, seed=3, labels={"k": "v"}),
    ]
    made = await scene.catalog.fork(given, family.origin)
    await scene.restart()
    for new, record in zip(given, made, strict=True):
        assert (record.id, record.name, record.seed) == (new.id, new.name, new.seed)
        assert record.labels == new.labels
        assert await scene.catalog.actor(new.name) == record
        assert await scene.catalog.actor(new.id) == record
    assert await scene.catalog.check() == ()


async def test_a_clock_that_was_set_back_changes_no_answer(scene, family):
    scene.clock[0] -= 25
    early = await scene.breed(3, family.origin)
    scene.clock[0] += 50
    late = await scene.breed(3, family.origin)
    page, _ = await scene.catalog.search(VersionQuery(op=Op.FORK, limit=50))
    ids = [one.id for one in (*early, *family.children, *late)]
    assert [one.actor_id for one in page] == ids
    nodes, _, _ = await scene.catalog.lineage("parent@2", "descendants", 1, 50)
    assert [one.actor_id for one in nodes[1:]] == [*family.ids, *ids[:3], *ids[8:]]
    assert await scene.catalog.check() == ()
