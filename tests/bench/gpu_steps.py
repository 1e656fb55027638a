"""Times whole decode steps as graphs, and copies of a state."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_models import GEOMETRIES, build, device_weights, mode_ops
from gpu_prompts import prefill_steps
from gpu_report import DEVICE, Ceilings, Report

from statevisor.guests import invariance, launch_triton, stacks_triton
from statevisor.guests.bank import Bank
from statevisor.guests.families import rwkv7, rwkv7_fused
from statevisor.guests.graphs import DecodeRows

ROWS = (1, 8, 32, 64, 128, 256, 512, 1024)


def steps(report: Report, limits: Ceilings) -> None:
    """Decode in one graph per batch size: embedding to argmax, the token fed back."""
    for name in report.geometries:
        tensors = device_weights(GEOMETRIES[name])
        for state in ("F16", "F32"):
            model = build(report, name, tensors, state)
            bank = Bank(model.layout, max(ROWS), DEVICE)
            if state == "F16":
                invariance._check_step(model)
                report.add(part="check", geometry=name, rows_do_not_depend_on_rows=True)
            _steps(report, limits, name, model, bank)
            if state == "F16":
                prefill_steps(report, name, model, bank)
                _moves(report, name, bank)
            del bank, model
        del tensors


def launched(report: Report, limits: Ceilings) -> None:
    """Whole steps by how the launches follow each other."""
    for name in report.geometries:
        model = build(report, name, device_weights(GEOMETRIES[name]), "F16")
        _compare_launches(report, name, model, Bank(model.layout, max(ROWS), DEVICE))


def _moves(report: Report, name: str, bank: Bank) -> None:
    """Copies of one actor's state: to 64 others on the device, and from and to pinned memory."""
    frame = bank.frames(1)
    calls: dict[str, Callable[[], Any]] = {
        "onto 64 slots": lambda: bank.copy(1, range(2, 66)),
        "host to slot": lambda: bank.load(1, frame),
        "slot to host": lambda: bank.save(1, frame),
    }
    for move, call in calls.items():
        times = []
        for _ in range(21):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begun) * 1e3)
        row = bank.layout.row_bytes
        report.add(part="move", geometry=name, move=move, ms=statistics.median(times), bytes=row)


def _compare_launches(report: Report, name: str, model: Any, bank: Bank) -> None:
    """Whole steps with each kind of dependent launch, and with weights asked for ahead."""
    fused = model.fused
    kept = launch_triton.dependence

    def depend(kind: int | None) -> None:
        for module in (rwkv7_fused, stacks_triton):
            module.dependence = kept if kind is None else lambda *_, **__: kind

    def ask(channels: int, head: int) -> None:
        for layer in fused._layers:
            for stack in layer.stacks():
                stack.ahead = min(channels, stack.length)
        fused._head.ahead = head

    for rows in (1, 32, 64, 128, 256, 512):
        found = {}
        for way, kind in {"plain": 0, "late": launch_triton.LATE.value}.items():
            depend(kind)
            found[way] = _step_us(model, bank, rows)
        depend(launch_triton.EARLY.value)
        for channels, head in ((0, 0), (128, 0), (256, 0), (256, 256), (512, 0), (1024, 0)):
            ask(channels, head)
            found[f"ahead {channels} head {head}"] = _step_us(model, bank, rows)
        ask(256, 256)
        report.add(part="launch", geometry=name, rows=rows, us=found)
    depend(None)


def _steps(report: Report, limits: Ceilings, name: str, model: Any, bank: Bank) -> None:
    streamed = sum(weight.nbytes for weight in model.matrices())
    for rows in ROWS:
        if report.left() < 0:
            return
        us = _step_us(model, bank, rows)
        state = rows * (2 * model.layout.row_bytes + model.vocab * 4) / limits.bytes_per_us
        floor = state + limits.floor(streamed, streamed / 2 * 2.0 * rows)
        report.add(
            part="step",
            geometry=name,
            state=model.layout.family("wkv").dtype,
            rows=rows,
            us=us,
            tok_per_s=rows / us * 1e6,
            floor_tok_per_s=rows / floor * 1e6,
            of_floor=floor / us,
        )


def _step_us(model: Any, bank: Bank, rows: int) -> float:
    static = DecodeRows(rows, DEVICE)
    batch = static.batch(rows)
    batch.slots.copy_(torch.arange(1, rows + 1))

    def step() -> None:
        logits = model.logits(model.forward(bank, batch))
        torch.argmax(logits, 1, out=batch.tokens)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    return statistics.median(times)


def modes(report: Report, limits: Ceilings) -> None:
    """Whole steps of the exact mode, of the fast one, and of single operators and the library."""
    for name in report.geometries:
        tensors, config = device_weights(GEOMETRIES[name]), GEOMETRIES[name]
        for mode in ("exact", "fast", "library"):
            model = rwkv7.Rwkv7Model.build(config, tensors, mode_ops(mode), "F16")
            bank = Bank(model.layout, 1024, DEVICE)
            for rows in (64, 128, 256, 512, 1024):
                us = _step_us(model, bank, rows)
                report.add(
                    part="mode",
                    geometry=name,
                    mode=mode,
                    rows=rows,
                    us=us,
                    tok_per_s=rows / us * 1e6,
                )
            del bank, model
