"""What more actors cost: copies of a slot, forks in the catalog, new actors, memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from statevisor.api.bench.report import quantiles
from statevisor.api.bench.scene import Found, Scene
from statevisor.hypervisor.commands import CreateActor, DeleteActor, Fork, Snapshot
from statevisor.hypervisor.vocab import Tier

COUNT: Final = 64
_WARM: Final = 3
_ROUNDS: Final = 30
_WAVES: Final = {False: 8, True: 2}  #: by whether the image is waited for
_PROMPT: Final = "Once upon a time"


async def forks(scene: Scene) -> Found:
    """Copies of one slot onto others on the idle guest; forks of many children in the catalog."""
    device = _copies(scene)
    catalog: list[float] = []
    async with scene.actors("parent", 1, prompt=_PROMPT) as (parent,):
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            await scene.visor.fork(Fork(actor=parent, count=COUNT))
            catalog.append((time.perf_counter() - began) * 1e3 / COUNT)
    told: dict[str, Any] = {
        "fork64_device_ms": quantiles(device),
        "fork64_device_copies": _targets(scene),
        "fork_catalog_ms": quantiles(catalog),
        "fork_catalog_ms_p50": quantiles(catalog)["p50"],
    }
    return Found(figures=told, samples={"fork64_device_ms": device, "fork_catalog_ms": catalog})


def _targets(scene: Scene) -> int:
    return min(COUNT, scene.guest.slots - 1)


def _copies(scene: Scene) -> list[float]:
    """Milliseconds of copying slot 1 onto the next, which nobody holds.

    A copy may still be under way when it returns, so a target is saved behind it, and what the
    save takes without a copy is taken away.
    """
    guest, last = scene.guest, 1 + _targets(scene)
    targets, row = range(2, last + 1), scene.guest.frames(1)

    def save() -> None:
        guest.save(last, row)

    def copy() -> None:
        guest.copy(1, targets)
        save()

    for _ in range(_WARM):
        copy()
    return [_timed(copy) - _timed(save) for _ in range(_ROUNDS)]


def _timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


async def new_actors(scene: Scene) -> Found:
    """Actors that are created, absorb a short prompt and are named, many at a time."""
    count = min(COUNT, scene.half)
    told: dict[str, Any] = {}
    samples: dict[str, list[float]] = {}
    for imaged, waves in _WAVES.items():
        seconds = [await _wave(scene, count, imaged=imaged) for _ in range(waves)]
        name = "create_snapshot_imaged" if imaged else "create_snapshot"
        told[f"{name}_per_s"] = round(count * waves / sum(seconds), 1)
        samples[f"{name}_{count}_s"] = seconds
    return Found(figures=told, samples=samples)


async def _wave(scene: Scene, count: int, *, imaged: bool) -> float:
    names = [f"new-{index}" for index in range(count)]

    async def begin(name: str) -> None:
        await scene.visor.create(CreateActor(name=name, prompt=_PROMPT))
        await scene.visor.snapshot(Snapshot(actor=name, wait=imaged))

    began = time.perf_counter()
    await asyncio.gather(*map(begin, names))
    took = time.perf_counter() - began
    await asyncio.gather(*(scene.visor.delete(DeleteActor(actor=name)) for name in names))
    return took


async def memory(scene: Scene) -> Found:
    """State bytes of as many resident actors as there are slots, over the bytes of the bank."""
    layout = scene.guest.layout
    state_bytes = sum(family.nbytes for family in layout.families)
    async with scene.actors("resident", scene.plan.slots, prompt="Once"):
        (tier,) = [view for view in await scene.visor.tiers() if view.tier is Tier.GPU]
    taken = bank_bytes(scene)
    told = {
        "resident": tier.actors,
        "state_bytes": tier.actors * state_bytes,
        "bank_bytes": taken,
    }
    ratio = round(tier.actors * state_bytes / taken, 4)
    return Found(figures={"memory_efficiency": ratio, "memory": told}, samples={})


def bank_bytes(scene: Scene) -> int:
    """Of the memory that the bank has asked for; by its rows where the guest shows no bank."""
    bank = getattr(scene.guest, "bank", None)
    if bank is None:
        return scene.guest.layout.row_bytes * (scene.guest.slots + 1)
    nbytes: int = bank.bytes.untyped_storage().nbytes()
    return nbytes
