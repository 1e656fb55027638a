"""What others do to the steps of actors that decode: many leave at once, one reads much."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from statevisor.api.bench.report import quantiles
from statevisor.api.bench.scene import Found, Scene
from statevisor.api.bench.step_log import Span, Step, figures_of, milliseconds
from statevisor.hypervisor.commands import Append
from statevisor.hypervisor.vocab import Tier

#: How often all of the group leave at once, to each tier.
TIMES: Final = {Tier.HOST: 10, Tier.NVME: 4}
GROUP: Final = 64
_PROMPTS: Final = 3
#: Steps that are waited for behind a span, so that the last of it is back.
_BEHIND: Final = 3


async def hibernate_many(scene: Scene) -> Found:
    """Half of the slots decode, all others (64 at most) leave at once: to host memory, to disk."""
    told: dict[str, Any] = {}
    samples: dict[str, Sequence[float]] = {}
    count = min(GROUP, scene.half)
    for tier, times in TIMES.items():
        before: list[Step] = []
        spans: list[Span] = []
        async with scene.actors("leaver", count, prompt="Once"), scene.decoding(scene.half):
            names = [f"leaver-{index}" for index in range(count)]
            for _ in range(times):
                await _changed(scene, names)
                before += await scene.log.passed(scene.plan.steps, rows=scene.half)
                spans.append(await _leave(scene, names, tier))
                await scene.log.passed(_BEHIND, rows=scene.half)
            meanwhile = scene.log.within(*spans)
        seconds = [end - begin for begin, end in spans]
        told[tier.value] = {
            "actors": count,
            "all_s": quantiles(seconds),
            **_compared(before, meanwhile),
        }
        samples[f"hibernate64_{tier.value}_s"] = seconds
        samples[f"hibernate64_{tier.value}_before_ms"] = milliseconds(before)
        samples[f"hibernate64_{tier.value}_step_ms"] = milliseconds(meanwhile)
    return Found(figures={"hibernate64": told}, samples=samples)


async def _changed(scene: Scene, names: Sequence[str]) -> None:
    """All in a slot, with a state that no image has."""
    append = scene.visor.append
    await asyncio.gather(*(append(Append(actor=name, prompt=" more")) for name in names))


async def _leave(scene: Scene, names: Sequence[str], tier: Tier) -> Span:
    began = time.perf_counter()
    await asyncio.gather(*(scene.hibernate(name, tier) for name in names))
    return began, time.perf_counter()


async def long_prompt(scene: Scene) -> Found:
    """Half of the slots decode while another actor absorbs a long prompt, three times."""
    chance, count = random.Random(2), scene.plan.prompt_tokens
    spans: list[Span] = []
    before: list[Step] = []
    async with scene.actors("reader", 1, prompt="Once"), scene.decoding(scene.half):
        for _ in range(_PROMPTS):
            # bytes, which random guests take as they are; their special tokens lie above
            prompt = tuple(chance.randbytes(count))
            before += await scene.log.passed(scene.plan.steps, rows=scene.half)
            began = time.perf_counter()
            await scene.visor.append(Append(actor="reader-0", prompt=prompt))
            spans.append((began, time.perf_counter()))
            await scene.log.passed(_BEHIND, rows=scene.half)
        meanwhile = scene.log.within(*spans)
    rates = [count / (end - begin) for begin, end in spans]
    told = {
        "tokens": count,
        "decoding": scene.half,
        "tokens_per_s": quantiles(rates, digits=0),
        **_compared(before, meanwhile),
    }
    return Found(
        figures={"prompt16k": told},
        samples={
            "prompt16k_tokens_per_s": rates,
            "prompt16k_before_ms": milliseconds(before),
            "prompt16k_step_ms": milliseconds(meanwhile),
        },
    )


def _compared(before: Sequence[Step], meanwhile: Sequence[Step]) -> dict[str, Any]:
    """Steps while something went on beside those right before it."""
    old, new = figures_of(before), figures_of(meanwhile)
    ratio = {
        f"{kind.removesuffix('_ms')}_{rank}_ratio": round(new[kind][rank] / old[kind][rank], 3)
        for kind in old
        for rank in ("p50", "p99")
    }
    return {"before": old, "meanwhile": new, **ratio}
