"""One actor goes down a tier and comes back with a token: alone, and beside others that decode.

A token is timed from the call that asks for it until it is told. The step that drew it is the one
with a row more than the others have, so what lies between is the output gate and nothing else. A
round in which one of the others sat that step out, since an image of it was due, has no such step
and is in the times of calls only.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from statevisor.api.bench.report import quantiles
from statevisor.api.bench.scene import Found, Scene
from statevisor.api.bench.step_log import Span, figures_of, milliseconds
from statevisor.hypervisor.commands import TokenEvent
from statevisor.hypervisor.vocab import Tier

_WARM: Final = 3
_PROMPT: Final = "Once upon a time"


@dataclass(slots=True)
class Rounds:
    """Milliseconds of hibernations and of the tokens behind them."""

    hibernate: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)  #: from the call to the first token
    drawn: list[float] = field(default_factory=list)  #: from the call to the end of its step
    gate: list[float] = field(default_factory=list)  #: from there to the token
    spans: list[Span] = field(default_factory=list)  #: of the calls


class _Mover:
    """One actor beside `others` that decode."""

    def __init__(self, scene: Scene, name: str, others: int) -> None:
        self._scene = scene
        self._name = name
        self._others = others
        self._heard = 0.0

    async def rounds(self, tier: Tier, count: int, gap_s: float = 0.0) -> Rounds:
        """Down and back, so often; up to `gap_s` before a token is asked for, at random, so that
        it does not always fall on the same moment of a step."""
        chance = random.Random(1)
        for _ in range(_WARM):
            await self._round(tier, Rounds(), 0.0)
        found = Rounds()
        for _ in range(count):
            await self._round(tier, found, chance.uniform(0, gap_s))
        return found

    async def _round(self, tier: Tier, found: Rounds, gap_s: float) -> None:
        found.hibernate.append(await self._scene.hibernate(self._name, tier))
        if tier is Tier.NVME:
            self._scene.forget_pages()
        await asyncio.sleep(gap_s)
        await self._token(found)

    async def _token(self, found: Rounds) -> None:
        log, self._heard = self._scene.log, 0.0
        mark, began = len(log.steps), time.perf_counter()
        stream = await self._scene.visor.generate(self._scene.turn(self._name, 1))
        stream.listen(self._hear)
        await stream.result()
        found.told.append((self._heard - began) * 1e3)
        drawn = log.first(mark, rows=self._others + 1)
        if drawn is not None:
            found.drawn.append((drawn.end - began) * 1e3)
            found.gate.append((self._heard - drawn.end) * 1e3)
        found.spans.append((began, self._heard))

    def _hear(self, events: Sequence[TokenEvent]) -> None:
        self._heard = self._heard or time.perf_counter()


async def resume_host(scene: Scene) -> Found:
    """Between slot and host memory, nobody else at work."""
    async with scene.actors("sleeper", 1, prompt=_PROMPT) as (name,):
        found = await _Mover(scene, name, 0).rounds(Tier.HOST, scene.plan.rounds)
    return _found(
        {
            "resume_host_ms": found.told,
            "resume_host_drawn_ms": found.drawn,
            "gate_ms": found.gate,
            "hibernate_host_ms": found.hibernate,
        }
    )


async def resume_nvme(scene: Scene) -> Found:
    """Between slot and disk, nobody else at work: durable down, uncached up."""
    async with scene.actors("sleeper", 1, prompt=_PROMPT) as (name,):
        found = await _Mover(scene, name, 0).rounds(Tier.NVME, scene.plan.rounds)
    return _found(
        {
            "resume_nvme_ms": found.told,
            "resume_nvme_drawn_ms": found.drawn,
            "hibernate_ms": found.hibernate,
        }
    )


async def resume_busy(scene: Scene) -> Found:
    """Between slot and host memory while others decode, and what becomes of their steps."""
    others = max(1, scene.half - 1)
    async with (
        scene.actors("sleeper", 1, prompt=_PROMPT) as (name,),
        scene.decoding(others),
    ):
        alone = await scene.log.passed(scene.plan.steps * 4, rows=others)
        step_ms = quantiles(milliseconds(alone))["p50"]
        began = time.perf_counter()
        mover = _Mover(scene, name, others)
        found = await mover.rounds(Tier.HOST, scene.plan.rounds, 2e-3 * step_ms)
        rounds = scene.log.within((began, time.perf_counter()))
        meanwhile = scene.log.within(*found.spans)
    told = _found(
        {
            "resume_host_busy_ms": found.told,
            "resume_host_busy_drawn_ms": found.drawn,
            "gate_busy_ms": found.gate,
            "hibernate_host_busy_ms": found.hibernate,
        }
    )
    steps: dict[str, Any] = {
        "others": others,
        "alone": figures_of(alone),
        "rounds": figures_of(rounds),
        "meanwhile": figures_of(meanwhile),
    }
    more = {"step_busy_ms": steps, "resume_host_busy_steps": _in_steps(found, step_ms)}
    samples = {"step_alone_ms": milliseconds(alone), "step_busy_ms": milliseconds(meanwhile)}
    return Found(figures={**told.figures, **more}, samples={**told.samples, **samples})


def _in_steps(found: Rounds, step_ms: float) -> float | None:
    """How many of the others' steps a resume takes up to the end of the step that draws."""
    return round(quantiles(found.drawn)["p50"] / step_ms, 3) if found.drawn else None


def _found(samples: dict[str, list[float]]) -> Found:
    figures = {name: quantiles(of) for name, of in samples.items() if of}
    return Found(figures=figures, samples=samples)
