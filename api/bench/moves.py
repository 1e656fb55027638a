"""What moves cost in the whole engine, alone and beside actors that decode.

A visor over a real store on a real disk, with a guest of random weights. Its parts are measured one
after the other with the same visor; each makes its own actors and deletes them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from statevisor.api.bench import beside, copies, single_moves
from statevisor.api.bench.arrivals import arrivals
from statevisor.api.bench.as_served import as_served, gathered
from statevisor.api.bench.report import Report, conditions
from statevisor.api.bench.scene import Found, Plan, Scene
from statevisor.api.bench.stage import staged
from statevisor.api.bench.step_log import StepLog
from statevisor.guests.geometries import random_guest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.ports import Guest

PARTS: Final[Mapping[str, Callable[[Scene], Awaitable[Found]]]] = MappingProxyType(
    {
        "resume_host": single_moves.resume_host,
        "resume_nvme": single_moves.resume_nvme,
        "resume_busy": single_moves.resume_busy,
        "hibernate64": beside.hibernate_many,
        "prompt16k": beside.long_prompt,
        "arrivals": arrivals,
        "fork64": copies.forks,
        "create_snapshot": copies.new_actors,
        "memory_efficiency": copies.memory,
    }
)
#: Told of a part's figures once it is done.
Told = Callable[[str, Mapping[str, Any]], None]


def run(plan: Plan, told: Told, scratch: Path | None = None) -> Report:
    """Measure; the data folder is made under `scratch` and removed.

    Raises: InvalidRequest (no such geometry or part, too few slots), CapabilityMissing.
    """
    if unknown := set(plan.parts) - PARTS.keys():
        raise InvalidRequest(f"there is no part {min(unknown)!r}: {', '.join(PARTS)}")
    if plan.slots < 4:
        raise InvalidRequest("half of the slots decode beside others: at least 4 are needed")
    began = time.perf_counter()
    guest = random_guest(
        plan.geometry,
        slots=plan.slots,
        state_dtype=plan.state_dtype,
        device=plan.device,
        step_tokens=plan.step_tokens,
    )
    machine = conditions() | _conditions(plan, guest, time.perf_counter() - began)
    with (
        as_served(),
        tempfile.TemporaryDirectory(dir=scratch, prefix="statevisor-bench-") as folder,
    ):
        found = asyncio.run(measure(plan, guest, told, Path(folder)))
    return {"bench": "moves", "conditions": machine, **found}


def _conditions(plan: Plan, guest: Guest, started: float) -> dict[str, Any]:
    return {
        "geometry": plan.geometry,
        "state_dtype": plan.state_dtype,
        "device": plan.device,
        "slots": plan.slots,
        "row_bytes": guest.layout.row_bytes,
        "step_tokens": max(plan.step_tokens, plan.slots),
        "steps_ahead": guest.steps_ahead,
        "durability": plan.durability,
        "temperature": plan.settings.temperature,
        "guest_start_s": round(started, 2),
    }


async def measure(plan: Plan, guest: Guest, told: Told, folder: Path) -> dict[str, Any]:
    """The plan's parts, with this guest and a store in `folder`."""
    config = VisorConfig(
        # twice as many frames as ever leave at once, so that none is spilled
        host_bytes=2 * beside.GROUP * guest.layout.row_bytes,
        step_tokens=max(plan.step_tokens, plan.slots),
        durability=plan.durability,
    )
    log = StepLog()
    report: dict[str, Any] = {}
    samples: dict[str, list[float]] = {}
    async with staged(folder, guest, config, meter=log) as stage:
        visor = stage.visor
        scene = Scene(plan=plan, visor=visor, guest=guest, log=log, folder=folder)
        for name in plan.parts:
            gathered()
            log.steps.clear()
            began = time.perf_counter()
            part = await PARTS[name](scene)
            report |= part.figures
            samples |= {
                name: [round(value, 4) for value in of] for name, of in part.samples.items()
            }
            told(name, {**part.figures, "part_s": round(time.perf_counter() - began, 2)})
    return report | {"samples": samples}
