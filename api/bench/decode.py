"""How fast many actors answer at once: the whole engine loop, without HTTP around it.

Every batch size is as many actors in a slot, each with one turn: steps, draws, text, the journal
in a real database and the gate behind it. The turns run until so many steps had a row of every
actor, and these steps alone are in the figures; then the turns are cancelled.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statevisor.api.bench.as_served import as_served, gathered
from statevisor.api.bench.prefill import Shape, measure
from statevisor.api.bench.report import Report, conditions, progress, quantiles
from statevisor.api.bench.stage import staged
from statevisor.guests.geometries import random_guest
from statevisor.hypervisor.commands import CreateActor, DeleteActor, Generate, TokenEvent
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.ports import Guest
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.visor import Visor

#: Full steps at the begin of a run that do not count.
_WARM = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be measured."""

    geometry: str
    batches: Sequence[int]
    steps: int  #: to measure, each with a row of every actor
    settings: SamplerSettings
    state_dtype: str
    device: str
    durability: Any = "sync"
    modes: Sequence[str] = ("exact",)  #: of the guest, one after the other
    prompts: Sequence[Shape] = ()  #: rows and tokens of prompts to absorb, each in one step


class StepMeter:
    """A Meter that keeps the steps with so many rows: when each came back, how long it took."""

    def __init__(self) -> None:
        self.expect(0, 0)

    def expect(self, rows: int, steps: int) -> None:
        """Begin anew; `enough` is set once so many steps had so many rows."""
        self.enough = asyncio.Event()
        self.ends: list[float] = []
        self.cpu: list[float] = []
        self.seconds: list[float] = []
        self.commits: list[float] = []
        self._rows, self._steps = rows, steps
        self._last = 0.0

    def observe(self, name: str, value: float, **labels: str) -> None:
        if name == "step_seconds":
            self._last = value
        elif name == "step_rows" and value == self._rows:
            # steps that were given at once come back at once, each with the same share of the time
            together = self.seconds and self.seconds[-1] == self._last
            self.ends.append(self.ends[-1] if together else time.perf_counter())
            self.cpu.append(time.process_time())
            self.seconds.append(self._last)
            if len(self.ends) >= self._steps:
                self.enough.set()
        elif name == "journal_commit_seconds" and self.ends:
            self.commits.append(value)

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        pass


def run(plan: Plan, scratch: Path | None = None) -> Report:
    """Measure; the data folder is made under `scratch` and removed.

    Raises: InvalidRequest (no such geometry), CapabilityMissing (no such device).
    """
    machine = conditions() | {
        "geometry": plan.geometry,
        "state_dtype": plan.state_dtype,
        "durability": plan.durability,
        "temperature": plan.settings.temperature,
        "top_p": plan.settings.top_p,
        "top_k": plan.settings.top_k,
    }
    found = {mode: _mode(plan, mode, scratch) for mode in plan.modes}
    report = {"bench": "decode", "conditions": machine}
    if len(found) == 1:
        (mode, figures), *_ = found.items()
        return report | {"mode": mode, **figures}
    return report | {"modes": found, "exact_cost": exact_cost(found)}


def exact_cost(found: Mapping[str, Any]) -> dict[str, float]:
    """How many times the exact mode's rate the fast one's is, by batch, and the worst of them."""
    fast, exact = found["fast"]["batches"], found["exact"]["batches"]
    costs = {
        batch: round(fast[batch]["tokens_per_s"] / exact[batch]["tokens_per_s"], 4)
        for batch in exact
    }
    return costs | {"worst": max(costs.values())}


def _mode(plan: Plan, mode: str, scratch: Path | None) -> dict[str, Any]:
    """The figures of one guest."""
    began = time.perf_counter()
    guest = random_guest(
        plan.geometry,
        slots=max([*plan.batches, *(rows for rows, _ in plan.prompts)]),
        state_dtype=plan.state_dtype,
        device=plan.device,
        mode=mode,
        step_tokens=max([512, *(rows * tokens for rows, tokens in plan.prompts)]),
    )
    started = time.perf_counter() - began
    progress(f"{plan.geometry}, {mode}: started in {started:.1f} s")
    prompts = measure(guest, plan.prompts) if plan.prompts else {}
    with (
        as_served(),
        tempfile.TemporaryDirectory(dir=scratch, prefix="statevisor-bench-") as folder,
    ):
        found = asyncio.run(_measure(plan, guest, Path(folder)))
    return {
        "guest_start_s": round(started, 2),
        "steps_ahead": guest.steps_ahead,
        "batches": found,
        **prompts,
    }


async def _measure(plan: Plan, guest: Guest, folder: Path) -> dict[str, Any]:
    meter = StepMeter()
    config = VisorConfig(
        host_bytes=0, step_tokens=max(512, *plan.batches), durability=plan.durability
    )
    found = {}
    async with staged(folder, guest, config, meter=meter) as stage:
        visor = stage.visor
        for batch in plan.batches:
            names = [f"b{batch}-{index}" for index in range(batch)]
            for index, name in enumerate(names):
                await visor.create(CreateActor(name=name, prompt=None, seed=index))
            gathered()
            await _turns(visor, plan, names, meter)
            found[str(batch)] = _figures(meter, batch)
            progress(f"{batch} actors: {found[str(batch)]['tokens_per_s']} tokens/s")
            for name in names:
                await visor.delete(DeleteActor(actor=name))
    return found


async def _turns(visor: Visor, plan: Plan, names: Sequence[str], meter: StepMeter) -> None:
    """Run a turn of every actor until it is enough."""
    firsts = [asyncio.get_running_loop().create_future() for _ in names]

    async def begin(name: str, first: asyncio.Future[None]) -> TurnStream:
        turn = Generate(
            actor=name,
            prompt="In the beginning",
            max_tokens=1 << 20,
            settings=plan.settings,
            ignore_eos=True,
        )
        stream = await visor.generate(turn)
        stream.listen(_reader(first))
        return stream

    # all at once: one after the other the first would be checkpointed while the last begin
    streams = await asyncio.gather(*map(begin, names, firsts))
    # the turns' own beginnings are journalled before what is measured
    await asyncio.gather(*firsts)
    meter.expect(len(names), _WARM + plan.steps)
    await meter.enough.wait()
    for stream in streams:
        stream.cancel()
    for stream in streams:
        await stream.result()


def _reader(first: asyncio.Future[None]) -> Callable[[Sequence[TokenEvent]], None]:
    """As a caller who has taken them and forgets them."""

    def read(events: Sequence[TokenEvent]) -> None:
        if not first.done():
            first.set_result(None)

    return read


def _figures(meter: StepMeter, batch: int) -> dict[str, Any]:
    begin = len(meter.ends) - meter.ends[::-1].index(meter.ends[_WARM]) - 1
    ends, cpu = meter.ends[begin:], meter.cpu[begin:]
    steps = len(ends) - 1
    return {
        "tokens_per_s": round(steps * batch / (ends[-1] - ends[0])),
        "step_ms": quantiles([seconds * 1e3 for seconds in meter.seconds[_WARM:]]),
        # of all threads: what the host spends on a token while the device runs
        "cpu_us_per_token": round((cpu[-1] - cpu[0]) / (steps * batch) * 1e6, 2),
        "journal_commit_ms": quantiles([seconds * 1e3 for seconds in meter.commits] or [0.0]),
    }
