"""Checkpoints: when one is due, and what it is worth after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.hypervisor.checkpoints import CheckpointPolicy
from statevisor.hypervisor.commands import Generate, Hibernate
from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.vocab import Tier


class Hand:
    """A clock moved by hand."""

    seconds = 0.0

    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.seconds


def policy(clock: Hand, **more: Any) -> CheckpointPolicy:
    settings = {"image_bytes": 1000, "most_tokens": 4096, "disk_bytes_s": 10_000.0, **more}
    return CheckpointPolicy(clock=clock, **settings)


def test_the_distance_follows_the_speed_of_replay() -> None:
    rules = policy(Hand())
    assert rules.distance == 4096
    rules.replayed(500, 1.0)
    assert rules.distance == 500
    rules.replayed(10**9, 1.0)
    assert rules.distance == 4096
    assert not rules.due(4095)
    assert rules.due(4096)


def test_writes_take_no_more_than_their_share_of_the_disk() -> None:
    clock = Hand()
    rules = policy(clock, most_tokens=1)
    while rules.due(1):  # what the start allows at once
        pass
    written = 0
    for _ in range(1000):
        clock.seconds += 0.1
        written += 1000 * rules.due(1)
    assert written == pytest.approx(0.15 * 10_000 * 100, rel=0.02)


def test_a_slow_disk_is_asked_less_often() -> None:
    clock = Hand()
    rules = policy(clock, most_tokens=1)
    for _ in range(50):
        rules.wrote(1000, 1.0)  # 1,000 bytes a second
    while rules.due(1):
        pass
    clock.seconds += 5
    assert not rules.due(1)
    clock.seconds += 5
    assert rules.due(1)


async def crashed_in_a_long_turn(worlds: Callable[..., Any], distance: int) -> tuple[Any, float]:
    """A world that died after a few hundred tokens, and how many tokens the next touch replayed."""
    world = await worlds(config={"checkpoint_tokens": distance})
    await world.create("a")
    stream = await world.visor.generate(Generate(actor="a", max_tokens=5000, ignore_eos=True))
    told = []
    async for event in stream:
        told.append(event.token)
        if len(told) == 400:
            break
    await world.crash()
    before = world.meter.counts.get("replayed_tokens_total", 0)
    view = await world.visor.transcript("a", 6)
    assert list(view.token_ids[:400]) == told
    more = await world.visor.generate(Generate(actor="a", max_tokens=9, ignore_eos=True))
    rest = await more.result()
    await world.create("twin")
    count = len(view.token_ids) + 9
    twin = await world.visor.generate(Generate(actor="twin", max_tokens=count, ignore_eos=True))
    assert view.token_ids + rest.token_ids == (await twin.result()).token_ids
    return world, world.meter.counts["replayed_tokens_total"] - before


async def test_a_long_turn_is_checkpointed_while_it_runs(worlds: Callable[..., Any]) -> None:
    world, replayed = await crashed_in_a_long_turn(worlds, 50)
    assert world.images.used_bytes > 0
    assert replayed < 300
    _, whole = await crashed_in_a_long_turn(worlds, 1 << 30)
    assert whole >= 400


async def test_no_image_is_named_before_the_journal_has_its_tokens(world: Any) -> None:
    world.config["checkpoint_tokens"] = 5
    await world.crash()
    await world.create("a")
    journal, hold = world.catalog.journal, asyncio.Event()
    named: list[int] = []
    keep = world.catalog.keep_image

    async def slow(entries: Any, *, incarnation: int) -> None:
        await hold.wait()
        await journal(entries, incarnation=incarnation)

    async def noted(segment: int, position: int, image: Any) -> Any:
        named.append(position)
        return await keep(segment, position, image)

    world.catalog.journal, world.catalog.keep_image = slow, noted
    stream = await world.visor.generate(Generate(actor="a", max_tokens=60, ignore_eos=True))
    await asyncio.sleep(0.05)
    assert all(position <= 6 for position in named)  # the prompt's six tokens are committed
    hold.set()
    await stream.result()
    await world.visor._tasks.wait()
    assert max(named) > 6


async def test_a_checkpoint_that_fails_costs_the_turn_nothing(world: Any) -> None:
    world.config["checkpoint_tokens"] = 5
    await world.crash()
    await world.create("a")
    await world.create("twin")

    async def full(*_: Any) -> Any:
        raise Unavailable("the disk is full")

    put, world.images.put = world.images.put, full
    view = await world.say("a", max_tokens=60)
    await world.visor._tasks.wait()
    world.images.put = put
    assert view.token_ids == (await world.say("twin", max_tokens=60)).token_ids
    assert world.meter.counts["checkpoints_missed_total"] >= 1


async def test_the_checkpoint_of_a_cancelled_prompt_is_no_image_of_its_end(world: Any) -> None:
    world.config.update(checkpoint_tokens=5, step_tokens=4)
    await world.crash()
    await world.create("a")
    stream = await world.visor.generate(Generate(actor="a", prompt="a long story" * 5))
    stream.cancel()
    view = await stream.result()
    await world.visor._tasks.wait()
    assert (await world.visor.verify("a@1")).ok
    await world.visor.drain()
    record = await world.catalog.actor("a")
    image = await world.catalog.image_at(record.segment, view.position)
    meta = await world.images.get(image, memoryview(bytearray(80)))
    assert meta.absorbed == view.position - 1


async def test_bytes_that_are_there_already_are_written_once(world: Any) -> None:
    """Two actors of equal transcripts have equal states; the second's bytes are given back."""
    used = []
    for name in ("a", "twin"):
        await world.create(name, "once upon a time")
        await world.visor.hibernate(Hibernate(actor=name, tier=Tier.NVME))
        used.append(world.images.used_bytes)
    assert used[0] == used[1] > 0
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
