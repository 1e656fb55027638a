"""A wall clock set by years, either way: nothing is taken early, nothing loses its order."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.hypervisor.commands import Gc, Hibernate, UpdateActor
from statevisor.hypervisor.steady import SteadyTime
from statevisor.hypervisor.vocab import Tier
from statevisor.store.memory import MemoryCatalog

MINUTE = 60.0
YEAR = 365 * 86_400.0


@pytest.fixture
async def jumpy(worlds: Any) -> Any:
    """A world whose wall clock can be set: `world.jump(seconds)`."""
    ahead = [0.0]
    clock: list[Any] = []
    world = await worlds(catalog=MemoryCatalog(now_us=lambda: clock[0].now_us() if clock else 0))
    clock.append(world.clock)
    world.clock.now_us = lambda: int((world.clock.seconds + ahead[0]) * 1e6)

    def jump(seconds: float) -> None:
        ahead[0] += seconds

    world.jump = jump
    return world


async def gc(world: Any) -> Any:
    return await world.visor.gc(Gc(grace_s=MINUTE, dry_run=False))


async def sweep(world: Any) -> int:
    moved: int = await world.visor._idle.sweep()
    return moved


async def write_unnamed(world: Any) -> Any:
    """An image whose writer has not named it yet."""
    (batcher,) = world.visor._batchers.values()
    meta = batcher.residency.states.meta(1, 0, (7,))
    row = bytearray(world.guest.layout.row_bytes)
    return await world.images.put(memoryview(row), meta)


async def test_an_image_being_written_outlives_a_jump(jumpy: Any) -> None:
    image = await write_unnamed(jumpy)
    await gc(jumpy)
    jumpy.jump(10 * YEAR)
    await gc(jumpy)
    await jumpy.images.verify(image)

    jumpy.clock.seconds += 2 * MINUTE
    await gc(jumpy)
    assert jumpy.images.used_bytes == 0, "it goes once it is old"


async def forget_one(world: Any) -> None:
    await world.create("a", "once upon a time")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    record = (await world.visor.actor("a")).record
    await world.catalog.forget([(record.segment, record.position)])


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_a_forgotten_image_has_its_grace(jumpy: Any, jump: float) -> None:
    await forget_one(jumpy)
    jumpy.jump(jump)

    assert (await gc(jumpy)).freed_images == 0

    jumpy.clock.seconds += 2 * MINUTE
    jumpy.jump(-min(jump, 0))  # a clock behind may keep it longer, never shorter
    assert (await gc(jumpy)).freed_images == 1


async def test_by_the_wall_clock_it_would_be_gone(
    jumpy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(SteadyTime, "ahead_us", lambda self: 0)
    await forget_one(jumpy)
    jumpy.jump(YEAR)
    assert (await gc(jumpy)).freed_images == 1


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_idle_actors_are_judged_by_time_that_passed(jumpy: Any, jump: float) -> None:
    await jumpy.create("a")
    await jumpy.visor.update(UpdateActor(actor="a", ttl_s=60))
    jumpy.jump(jump)
    assert await sweep(jumpy) == 0

    jumpy.clock.seconds += 61
    assert await sweep(jumpy) == 1


async def test_what_comes_after_a_jump_back_sorts_behind(jumpy: Any) -> None:
    await jumpy.create("a")
    await jumpy.say("a")
    jumpy.jump(-YEAR)
    await jumpy.say("a")
    await jumpy.create("b")

    versions, _ = await jumpy.visor.versions("a")
    assert [one.seq for one in versions] == [0, 1, 2]
    times = [one.created_at for one in versions]
    assert times == sorted(times)
    actors, _ = await jumpy.visor.actors()
    assert [one.record.name for one in actors] == ["a", "b"]
