"""A state on its way out of its slot: written while it is copied, named only if it is whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor import filling
from statevisor.hypervisor.commands import Fork, Fsck, Hibernate, Resume
from statevisor.hypervisor.vocab import Rng, Tier
from statevisor.store.memory_images import MemoryImages

PART = 24


class HeldUp(ToyGuest):
    """Copies the first part of a slot, and the rest when it is let go."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.go = threading.Event()
        self.failure: Exception | None = None

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        if start:
            assert self.go.wait(20)
            if self.failure is not None:
                raise self.failure
        super().save(slot, out, start)


class Begun(MemoryImages):
    """Tells when the first part of a row has reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def put(self, row: memoryview, meta: Any, filled: Any = None) -> Any:
        assert await asyncio.to_thread(filled, PART) >= PART
        self.begun.set()
        return await super().put(row, meta, filled)


@pytest.fixture
async def world(worlds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(filling, "PART_BYTES", PART)
    made = await worlds(guest_type=HeldUp, images=Begun())
    for name in ("a", "twin"):
        await made.create(name, "once upon a time")
        await made.say(name)
    return made


async def leave(world: Any) -> asyncio.Task[Any]:
    """Begin to hibernate; returns once the image is begun and the slot is not yet copied."""
    leaving = asyncio.create_task(world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME)))
    await asyncio.wait_for(world.images.begun.wait(), 20)
    assert not leaving.done()
    return leaving


async def image(world: Any) -> Any:
    record = (await world.visor.actor("a")).record
    return await world.catalog.image_at(record.segment, record.position)


async def goes_on(world: Any) -> None:
    world.guest.go.set()
    world.guest.failure = None
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
    assert (await world.visor.fsck(Fsck())).ok


async def test_it_is_written_while_it_is_copied(world: Any) -> None:
    leaving = await leave(world)
    world.guest.go.set()
    assert (await leaving).tier is Tier.NVME
    assert await image(world) is not None
    await goes_on(world)


async def test_a_copy_that_breaks_is_told_and_nothing_is_named(world: Any) -> None:
    leaving = await leave(world)
    world.guest.failure = RuntimeError("device lost")
    world.guest.go.set()
    with pytest.raises(RuntimeError, match="device lost"):
        await leaving
    assert await image(world) is None
    await goes_on(world)


async def test_what_is_given_up_in_between_is_not_named(world: Any) -> None:
    """Its slot may be another's by then, and what is copied of it another's state."""
    (batcher,) = world.visor._batchers.values()
    actor = await world.visor._roster.find("a")
    assert actor.mailbox.try_enter()
    leaving = asyncio.create_task(batcher.residency.hibernate(actor, Tier.NVME))
    await asyncio.wait_for(world.images.begun.wait(), 20)
    leaving.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert actor.slot is None, "it waits for the copy"
    world.guest.go.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    actor.mailbox.leave()
    await batcher.residency._engine.settled()
    for _ in range(10):  # whatever would still be named
        await asyncio.to_thread(lambda: None)
    assert await image(world) is None
    await goes_on(world)


async def test_a_place_that_its_turn_has_just_made_is_not_looked_up(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.guest.go.set()

    async def looked_up(*_: Any) -> Any:
        raise AssertionError("it takes as long as the copy")

    monkeypatch.setattr(world.catalog, "standing", looked_up)
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    monkeypatch.undo()
    assert await image(world) is not None
    await goes_on(world)


async def test_an_image_that_was_there_all_the_same_stays_the_only_one(world: Any) -> None:
    world.guest.go.set()
    await world.visor.fork(Fork(actor="a", names=("child",), rng=Rng.INHERIT))
    await world.visor.resume(Resume(actor="child"))
    await world.visor.hibernate(Hibernate(actor="child", tier=Tier.NVME))
    first, used = await image(world), world.images.used_bytes
    assert first is not None
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    assert await image(world) == first
    assert world.images.used_bytes == used
    await goes_on(world)
