"""Turns of random lengths at random times: how even steps are while their rows come and go."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from statevisor.api.bench.report import quantiles
from statevisor.api.bench.scene import Found, Scene, forget
from statevisor.api.bench.step_log import Step, milliseconds
from statevisor.hypervisor.commands import CreateActor, DeleteActor, Generate

#: Shares of the slots that are busy at once on average, each for a quarter of the arrivals.
LOADS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
TURN_TOKENS: Final = (8, 64)
PROMPT_TOKENS: Final = (1, 32)
_ENOUGH: Final = 200  #: steps of a bucket, for its ratio to count


async def arrivals(scene: Scene) -> Found:
    """Turns of random lengths that begin at random times, one at a time of each of the actors."""
    rows = max(1, scene.plan.slots // 4)
    async with scene.decoding(rows):
        usual = await scene.log.passed(scene.plan.steps, rows=rows)
    step_s = quantiles(milliseconds(usual))["p50"] / 1e3
    names = [f"guest-{index}" for index in range(scene.plan.slots)]
    for name in names:
        await scene.visor.create(CreateActor(name=name))
    mark, began = len(scene.log.steps), time.perf_counter()
    await _arrive(scene, names, step_s)
    took, steps = time.perf_counter() - began, scene.log.steps[mark:]
    for name in names:
        await scene.visor.delete(DeleteActor(actor=name))
    from statevisor.guests.graphs import fitting_buckets  # here: torch loads with the guest

    told = {
        "turns": scene.plan.arrivals,
        "seconds": round(took, 3),
        "rows": quantiles([step.rows for step in steps], digits=0),
        **spread(steps, fitting_buckets(scene.plan.slots)),
    }
    return Found(
        figures={"step_p99_over_p50": told["over_own_bucket"]["p99"], "arrivals": told},
        samples={
            "arrivals_step_ms": milliseconds(steps),
            "arrivals_rows": [float(step.rows) for step in steps],
        },
    )


def spread(steps: Sequence[Step], buckets: Sequence[int]) -> dict[str, Any]:
    """How far steps are from the median of their own row bucket.

    `worst_bucket` is that with the largest p99 over p50, of those with enough steps.
    """

    def bucket(step: Step) -> int:
        return next(size for size in buckets if step.rows <= size)

    ratios: list[float] = []
    each: dict[str, Any] = {}
    for size, group in groupby(sorted(steps, key=bucket), key=bucket):
        ms = milliseconds(group)
        known = quantiles(ms)
        ratios += [value / known["p50"] for value in ms]
        ratio = round(known["p99"] / known["p50"], 3)
        each[str(size)] = {"step_ms": known, "p99_over_p50": ratio}
    counted = {
        size: of["p99_over_p50"] for size, of in each.items() if of["step_ms"]["n"] >= _ENOUGH
    }
    return {
        "step_ms": quantiles(milliseconds(steps)),
        "over_own_bucket": quantiles(ratios),
        "worst_bucket": max(counted.items(), key=lambda pair: pair[1], default=None),
        "buckets": each,
    }


async def _arrive(scene: Scene, names: Sequence[str], step_s: float) -> None:
    free: asyncio.Queue[str] = asyncio.Queue()
    for name in names:
        free.put_nowait(name)

    async def converse(command: Generate) -> None:
        stream = await scene.visor.generate(command)
        stream.listen(forget)
        await stream.result()
        free.put_nowait(command.actor)

    due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for gap_s, tokens, prompt in _turns(scene, step_s):
            due += gap_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            turn = scene.turn(await free.get(), tokens, prompt)
            group.create_task(converse(turn))


def _turns(scene: Scene, step_s: float) -> Iterator[tuple[float, int, tuple[int, ...]]]:
    """Seconds since the arrival before, tokens of the turn, its prompt."""
    chance, count = random.Random(3), scene.plan.arrivals
    turn_s = sum(TURN_TOKENS) / 2 * step_s
    for index in range(count):
        busy = max(1.0, LOADS[index * len(LOADS) // count] * scene.plan.slots)
        prompt = tuple(chance.randbytes(chance.randint(*PROMPT_TOKENS)))
        yield chance.expovariate(busy / turn_s), chance.randint(*TURN_TOKENS), prompt
