"""Times prompts as graphs and in eager passes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from gpu_models import GEOMETRIES, build, device_weights, mode_ops
from gpu_report import DEVICE, Ceilings, Report

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.families import rwkv7
from statevisor.guests.families.rwkv7_fused import FusedRwkv7
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.prompt_graphs import PromptGraphs
from statevisor.hypervisor.plan import Row

#: Rows and tokens of the prompts that are timed: by a graph, and in eager passes alone.
GRAPHED = ((1, 128), (1, 512), (1, 1024), (1, 2048), (32, 32), (4, 256), (4, 512))


#: Tokens and rows of graphs that prompts of other sizes are compared on.
CHECKED = ((256, 16), (512, 256))


EAGER = (*GRAPHED, (1, 4096), (1, 8192), (8, 512), (64, 64))


def prompts(report: Report, limits: Ceilings) -> None:
    """Prompts as graphs, beside eager passes of the same bits."""
    for name in report.geometries:
        model = build(report, name, device_weights(GEOMETRIES[name]), "F16")
        bank = Bank(model.layout, 256, DEVICE)
        sizes = [*((rows * tokens, rows) for rows, tokens in GRAPHED), *CHECKED]
        for warps in (2, 4, None):  # None: as they are chosen, which is what is recorded
            graphs = PromptGraphs(
                partial(model.forward, bank), tokens=2048, slots=256, device=DEVICE, sizes=sizes
            )
            begun = time.perf_counter()
            with pinned_warps(model, warps):
                graphs.capture()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begun
            report.add(part="capture", geometry=name, graphs=len(sizes), seconds=seconds)
            part = f"prefill {warps} warps" if warps else "prefill"
            prefill_steps(report, name, model, bank, GRAPHED, part, graphs)
            if warps is None:
                _same_prompts(report, name, model, graphs, bank)
        prefill_steps(report, name, model, bank, GRAPHED, "prefill eager")


def pinned_warps(model: Any, warps: int | None) -> AbstractContextManager[Any]:
    """Take so many warps a program for the recurrence of prompts, whatever the rule says."""
    if warps is None:
        return nullcontext()
    return mock.patch.object(FusedRwkv7, "_warps", return_value=warps)


def _same_prompts(report: Report, name: str, model: Any, graphs: PromptGraphs, bank: Bank) -> None:
    """Raises: AssertionError (a graph, an eager pass and single tokens do not give the same)."""
    generator = torch.Generator().manual_seed(9)
    for lengths in ((512,), (1, 40, 3, 1, 200), (32,) * 32, (2,) * 150):
        plan = [
            Row(slot=slot, tokens=tuple(torch.randint(9999, (n,), generator=generator).tolist()))
            for slot, n in enumerate(lengths, 1)
        ]
        found = []
        assert graphs.size(pack(plan, DEVICE)), lengths
        for forward in (graphs.eager, graphs):
            bank.bytes.zero_()
            found.append(model.logits(forward(pack(plan, DEVICE))).clone())
            found.append(bank.bytes[1:].clone())
        assert torch.equal(found[0], found[2]), lengths
        assert torch.equal(found[1], found[3]), lengths
        bank.bytes.zero_()
        for at in range(max(lengths)):
            single = [
                Row(slot=row.slot, tokens=(row.tokens[at],)) for row in plan if at < len(row.tokens)
            ]
            logits = model.logits(model.forward(bank, pack(single, DEVICE)))
        assert torch.equal(bank.bytes[1:], found[1]), lengths
        if len(set(lengths)) == 1:
            assert torch.equal(logits, found[0]), lengths
    report.add(part="check", geometry=name, graph_is_eager_is_single_tokens=True)


def chunks(report: Report, limits: Ceilings) -> None:
    """Prompts of the fast mode by a library's chunked recurrence, in eager passes."""
    for name in report.geometries:
        tensors, config = device_weights(GEOMETRIES[name]), GEOMETRIES[name]
        model = rwkv7.Rwkv7Model.build(config, tensors, mode_ops("fast"), "F16")
        bank = Bank(model.layout, 32, DEVICE)
        assert model.ops.chunked is not None, "the library with the chunked recurrence is missing"
        prefill_steps(report, name, model, bank, ((1, 512), (1, 2048), (1, 8192)), "prefill chunks")


def prefill_steps(
    report: Report,
    name: str,
    model: Any,
    bank: Bank,
    shapes: Sequence[tuple[int, int]] = EAGER,
    part: str = "prefill eager",
    forward: Callable[[RaggedBatch], torch.Tensor] | None = None,
) -> None:
    """Prompts: the time of the GPU and of the launches, whichever is longer."""
    for rows, tokens in shapes:
        if report.left() < 0:
            return
        plan = [Row(slot=slot, tokens=(slot,) * tokens) for slot in range(1, rows + 1)]
        batch = pack(plan, DEVICE)
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model.logits(forward(batch) if forward else model.forward(bank, batch))
            issued = time.perf_counter() - begun
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        report.add(
            part=part,
            geometry=name,
            rows=rows,
            tokens=tokens,
            ms=min(times) * 1e3,
            median_ms=statistics.median(times) * 1e3,
            launch_ms=issued * 1e3,
            tok_per_s=rows * tokens / min(times),
        )
