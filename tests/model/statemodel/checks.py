"""What must hold between any two operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statemodel.book import Actor
from statemodel.oracle import before

from statevisor.hypervisor.catalog_port import ActorQuery
from statevisor.hypervisor.vocab import Tier

if TYPE_CHECKING:
    from statemodel.session import Session


async def check_world(session: Session) -> None:
    """Compare everything with the model. Raises: AssertionError."""
    world, book = session.world, session.book
    await _check_rooms(session)
    records, _ = await world.catalog.actors(ActorQuery(limit=10_000))
    assert {one.id for one in records} == {one.id for one in book.living}, "other actors live"
    for record in records:
        await _check_actor(session, book.actors[record.id], record)
    known = {one.id for one in book.actors.values() if one.deleted}
    assert not known & world.residency.actors.keys(), "a deleted actor holds a slot or a frame"


async def _check_rooms(session: Session) -> None:
    """Slots, frames and extents are conserved."""
    world, residency = session.world, session.world.residency
    residency.check()
    residency.frames.check()
    world.images.check()
    held = [one for one in residency.actors.values() if one.slot is not None]
    assert residency.slots.capacity - residency.slots.free == len(held), "a slot is lost"
    assert len({one.slot for one in held}) == len(held), "two actors share a slot"
    framed = [one for one in residency.actors.values() if residency.frames.get(one.id)]
    assert residency.frames.used == len(framed), "a frame is lost"
    assert len({*held, *framed}) == len(residency.actors), "an actor that holds nothing is kept"
    assert not set(held) & set(framed), "an actor has a slot and a frame"
    live = await world.catalog.live_images()
    assert len({(one.slab, one.offset) for one in live}) == len(live)
    named = sum(one.length for one in live)
    # two who write one state at once leave one of both images to the collector
    if session.torn or world.config["checkpoint_tokens"] < 100:
        assert world.images.used_bytes >= named
    else:
        assert world.images.used_bytes == named, "an extent is lost, or bytes without a name"


async def _check_actor(session: Session, actor: Actor, record: Any) -> None:
    world = session.world
    view = await world.visor.actor(actor.id)
    assert view.record == record, f"memory and catalog differ: {view.record} {record}"
    if actor.event.poisoned and record.quarantine and not actor.quarantined:
        # whoever needed its slot found out
        actor.quarantined = True
        actor.generation += 1
    found = (record.name, record.position, record.base, record.head, record.seed, record.pinned)
    wanted = (
        actor.name,
        actor.position,
        actor.event.base,
        actor.head,
        actor.seed,
        actor.pinned,
    )
    assert found == wanted, f"{actor.name}: {found} is not {wanted}"
    assert record.generation == actor.generation, f"{actor.name}: {record.generation}"
    assert record.parent == (None if actor.parent is None else actor.parent.handle)
    assert (record.quarantine is not None) is actor.quarantined, f"{actor.name}: quarantine"
    assert view.durable_position == actor.position
    told = await world.visor.transcript(actor.id)
    assert list(told.token_ids) == actor.tokens(), f"{actor.name}: another transcript"
    assert list(told.segments) == actor.runs(), f"{actor.name}: {told.segments}"
    _check_tier(session, actor, view)
    await _check_versions(session, actor)


def _check_tier(session: Session, actor: Actor, view: Any) -> None:
    """The status is that of the tier, and the bytes there are the actor's state."""
    world = session.world
    statuses = {Tier.GPU: "idle", Tier.HOST: "hibernated", Tier.NVME: "hibernated"}
    wanted = "quarantined" if actor.quarantined else statuses[view.tier]
    assert view.status == wanted, f"{actor.name} is {view.status} in {view.tier}"
    assert not actor.quarantined or view.tier is Tier.NVME
    held = world.residency.actors.get(actor.id)
    assert (held is None) is (view.tier is Tier.NVME), f"{actor.name} in {view.tier}"
    if held is None:
        return
    assert not held.mailbox.held, f"{actor.name} is still held"
    if view.tier is Tier.GPU:
        absorbed, row = held.absorbed, world.row(held.slot)
        # a cancelled prompt may leave more pending, nothing else
        assert absorbed <= max(actor.position - 1, 0)
    else:
        frame = world.residency.frames.get(actor.id)
        assert frame.segment == held.segment
        absorbed = frame.absorbed
        row = bytes(world.frame(actor.id))
        if actor.id in session.damaged:
            return
    assert row == before(actor.event, absorbed).row, f"{actor.name}: other bytes in {view.tier}"


async def _check_versions(session: Session, actor: Actor) -> None:
    listed, more = await session.visor.versions(actor.id, limit=10_000)
    assert not more
    found = [(one.seq, one.position, one.op.value, one.parents, one.hidden) for one in listed]
    wanted = [
        (one.seq, one.event.position, one.op, tuple(v.handle for v in one.parents), False)
        for one in actor.visible
    ]
    assert found == wanted, f"{actor.name}: versions {found} are not {wanted}"


async def check_lineage(session: Session) -> None:
    """Every version, hidden ones and those of deleted actors too, with every edge."""
    for version in session.book.versions:
        record = await session.world.catalog.version(version.key)
        found = (record.position, record.op.value, record.parents, record.hidden)
        parents = tuple(one.handle for one in version.parents)
        wanted = (version.event.position, version.op, parents, version.hidden)
        assert found == wanted, f"{version.handle}: {found} is not {wanted}"
        if not version.actor.deleted:
            view = await session.visor.lineage(version.key, "ancestors", 1)
            edges = {one for one, two, _ in view.edges if two == version.handle}
            assert edges == set(parents), f"{version.handle}: edges {view.edges}"
