"""How fast a guest absorbs prompts: one step with its draw, from the call to the drawn tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from statevisor.api.bench.report import progress, quantiles
from statevisor.hypervisor.plan import Row, StepPlan
from statevisor.hypervisor.ports import Guest
from statevisor.hypervisor.sampling import Draw, SamplerSettings

#: Rows and tokens of each.
Shape = tuple[int, int]

_ROUNDS = 9


def measure(guest: Guest, shapes: Sequence[Shape]) -> dict[str, dict[str, Any]]:
    """Tokens per second at the median round, and the times of all rounds, by shape.

    Called from the thread that steps the guest; overwrites its first slots.
    """
    rates, times = {}, {}
    for shape in shapes:
        rows, tokens = shape
        name = f"{rows}x{tokens}"
        times[name] = quantiles([_round(guest, shape) * 1e3 for _ in range(1 + _ROUNDS)][1:])
        rates[name] = round(rows * tokens / times[name]["p50"] * 1e3)
        progress(f"prompts of {name}: {rates[name]} tokens/s")
    return {"prefill": rates, "prefill_ms": times}


def _round(guest: Guest, shape: Shape) -> float:
    rows, tokens = shape
    draw = Draw(seed=1, position=tokens, settings=SamplerSettings())
    text = tuple(7 * index % guest.vocab_size for index in range(tokens))
    plan = StepPlan(
        rows=tuple(Row(slot=slot, tokens=text, draw=draw) for slot in range(1, 1 + rows))
    )
    for row in plan.rows:
        guest.clear(row.slot)
    began = time.perf_counter()
    results = guest.step(plan)
    seconds = time.perf_counter() - began
    assert all(result.finite for result in results), "a prompt of plain tokens was not finite"
    return seconds
