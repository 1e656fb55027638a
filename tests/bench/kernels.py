"""Times the kernels and whole decode steps of RWKV-7 on a GPU against their byte floors.

    python tests/bench/kernels.py --out FILE [--parts stacks,steps,kernels] [--budget SECONDS]

Prints one line per measurement and writes all of them as JSON. Weights are random, of the true
geometry. `stacks` tries tiles for every product and row bucket and checks that all give the same
bits; `steps` then runs with the best. A time is the median over replays of a CUDA graph that holds
many calls on different operands, so that neither launches nor cached operands are measured. A floor
is the greater of bytes (each operand once) over the copy rate and operations over the matrix rate,
both measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton

from statevisor.guests import invariance, launch_triton, stacks_triton
from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.families import rwkv7, rwkv7_fused, rwkv7_weights
from statevisor.guests.families.rwkv7_fused import FusedLayer, FusedRwkv7
from statevisor.guests.graphs import DecodeRows
from statevisor.guests.linear_cublas import LibraryLinear
from statevisor.guests.linear_triton import Tile, bucket
from statevisor.guests.mixers.time_triton import (
    prompt_kernel,
    prompt_keys_kernel,
    prompt_output_kernel,
    token_kernel,
)
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.ops_fast import FastOps
from statevisor.guests.ops_triton import TritonOps
from statevisor.guests.prompt_graphs import PromptGraphs
from statevisor.guests.stacks_triton import Stack, Stacks, added
from statevisor.guests.tiles import TILES
from statevisor.hypervisor.plan import Row

ACT = torch.bfloat16
DEVICE = torch.device("cuda", 0)
ROWS = (1, 8, 32, 64, 128, 256, 512, 1024)
GEOMETRIES = {
    "191M": rwkv7.Rwkv7Config(
        layers=12,
        width=768,
        heads=12,
        ffn=3072,
        rank_w=64,
        rank_a=64,
        rank_v=32,
        rank_g=128,
        vocab=65536,
    ),
    "1.5B": rwkv7.Rwkv7Config(
        layers=24,
        width=2048,
        heads=32,
        ffn=8192,
        rank_w=96,
        rank_a=96,
        rank_v=64,
        rank_g=256,
        vocab=65536,
    ),
}
#: Row counts that stand for their bucket when tiles are chosen.
TUNED = (1, 32, 64, 128, 256, 512, 1024)
#: Tiles worth trying, by bucket; those that do not fit a stack are left out.
CUTS: dict[int, tuple[str, ...]] = {
    16: ("64x16x64w4s8", "64x16x128w4s6", "64x16x256w4s4"),
    32: ("64x32x64w4s8", "64x32x128w4s5", "64x32x128w4s8", "64x32x256w4s4"),
    64: (
        "64x64x64w4s5",
        "64x64x64w4s8",
        "64x64x128w4s4",
        "64x64x128w4s6",
        "128x64x64w8s6",
        "128x64x64w4s6",
        "128x64x128w8s4",
    ),
    128: (
        "64x64x64w4s8",
        "64x128x64w4s4",
        "64x128x64w4s8",
        "64x128x128w4s4",
        "128x128x64w8s4",
        "128x128x64w8s6",
        "128x128x128w8s3",
    ),
    256: (
        "64x128x64w4s4",
        "64x128x64w4s8",
        "64x256x64w4s4",
        "128x128x64w8s4",
        "128x128x64w8s6",
        "128x256x64w8s4",
        "256x128x64w8s4",
    ),
    512: ("64x128x64w4s4", "128x128x64w8s4", "128x256x64w8s4", "256x128x64w8s4"),
    1024: ("64x128x64w4s4", "128x128x64w8s4", "128x256x64w8s4", "256x128x64w8s4"),
}
#: (rows under way, programs a multiprocessor, most registers) of the recurrence of single tokens.
TIME_CUTS = (
    (1, 1024, None),
    (2, 8, None),
    (3, 8, None),
    (4, 8, None),
    (3, 6, None),
    (3, 10, 200),
    (3, 12, 168),
)
#: Those that are used, for few rows and for many.
USED_CUTS = ((1, 1024, None), (rwkv7_fused.WALKED, rwkv7_fused.TIME_PROGRAMS, None))
#: Rows and tokens of the prompts that are timed: by a graph, and in eager passes alone.
GRAPHED = ((1, 128), (1, 512), (1, 1024), (1, 2048), (32, 32), (4, 256), (4, 512))
#: Tokens and rows of graphs that prompts of other sizes are compared on.
CHECKED = ((256, 16), (512, 256))
EAGER = (*GRAPHED, (1, 4096), (1, 8192), (8, 512), (64, 64))
# Hashing gigabytes of random weights would take longer than all measurements.
rwkv7_weights.tensors_digest = lambda tensors: "random"

Tiles = dict[tuple[int, int, int], Tile]


def launches(config: rwkv7.Rwkv7Config) -> dict[str, Callable[[], Stack]]:
    """Makers of the stacks of a layer and of the head, of random weights."""
    one = replace(config, layers=2, vocab=64)

    def layer() -> FusedLayer:
        weights = rwkv7.Rwkv7Weights.from_tensors(one, device_weights(one), DEVICE, ACT)
        return FusedLayer(weights.layers[1])

    return {
        "downs": lambda: layer().downs,
        "ups": lambda: layer().ups,
        "output": lambda: layer().output,
        "ffn key": lambda: layer().ffn_key,
        "ffn value": lambda: layer().ffn_value,
        "head": lambda: Stack(
            random(config.vocab, config.width) / config.width**0.5, ahead=rwkv7_fused.AHEAD
        ),
    }


@dataclass
class Report:
    """Collects results, prints them and keeps within a budget of seconds."""

    out: Path
    budget: float
    geometries: tuple[str, ...] = ("1.5B",)
    results: list[dict[str, Any]] = field(default_factory=list)
    tiles: Tiles = field(default_factory=lambda: dict(TILES))
    begun: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.budget - (time.monotonic() - self.begun)

    def add(self, **result: Any) -> None:
        self.results.append(result)
        sys.stdout.write(" ".join(f"{key}={_short(value)}" for key, value in result.items()) + "\n")
        sys.stdout.flush()

    def write(self) -> None:
        card = torch.cuda.get_device_name(DEVICE)
        head = {"device": card, "torch": torch.__version__, "seconds": self.budget - self.left()}
        tiles = [[*key, str(tile)] for key, tile in sorted(self.tiles.items())]
        text = json.dumps({**head, "tiles": tiles, "results": self.results}, indent=1)
        self.out.write_text(text)


def summary(results: Sequence[dict[str, Any]], commit: str) -> dict[str, Any]:
    """The measured figures of whole steps by what they are of, for `docs/benchmarks/h200.json`.

    Steps are graphs of embedding, layers, head and argmax with the token fed back: no scheduler, no
    sampler. Prefills are passes with their logits, as graphs unless it says eager. Copies are those
    of one state alone: no catalog, no disk.
    """
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
        "unit": "tokens per second",
        "scheduler_and_sampler_included": False,
    }
    for result in results:
        name, rows = result.get("geometry"), str(result.get("rows"))
        match result["part"]:
            case "step":
                half = result["state"] == "F16"
                graphs = found.setdefault("graph" if half else "graph_fp32_state", {})
                rates = graphs.setdefault(name, {})
                if half:
                    rates = rates.setdefault("exact", {})
                rates[rows] = round(result["tok_per_s"], 1)
                floor = "floor" if half else "floor_fp32_state"
                of = found.setdefault(floor, {}).setdefault(name, {})
                of[rows] = round(result["floor_tok_per_s"], 1)
            case "prefill" | "prefill eager" | "prefill chunks":
                shape = f"{rows}x{result['tokens']}"
                kind = found.setdefault(result["part"].replace(" ", "_"), {})
                kind.setdefault(name, {})[shape] = round(result["tok_per_s"], 1)
            case "mode":
                rates = found.setdefault("modes", {}).setdefault(name, {})
                rates.setdefault(result["mode"], {})[rows] = round(result["tok_per_s"], 1)
            case "move":
                copies = found.setdefault("copies_ms", {}).setdefault(result["move"], {})
                copies[name] = round(result["ms"], 4)
            case "ceiling":
                found["ceiling"] = {key: round(result[key], 3) for key in ("tb_per_s", "tflops")}
    return found


@dataclass(frozen=True)
class Ceilings:
    """What this machine can do: bytes and operations per microsecond."""

    bytes_per_us: float
    flops_per_us: float

    def floor(self, moved: float, flops: float = 0.0) -> float:
        return max(moved / self.bytes_per_us, flops / self.flops_per_us)


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def timed(calls: Sequence[Callable[[], Any]], replays: int = 7) -> float:
    """Microseconds per call, all calls in one graph."""
    for call in calls[:1]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    del kept
    return statistics.median(times) / len(calls)


def ceilings(report: Report) -> Ceilings:
    source = torch.randn(1 << 29, device=DEVICE)  # 2 GiB
    target = torch.empty_like(source)
    # A kernel, not a copy: in a graph a copy becomes a node of another, slower kind.
    copy = timed([partial(torch.add, source, 1.0, out=target)] * 3)
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=ACT) for _ in range(2))
    matmul = timed([lambda: a @ b] * 4)
    found = Ceilings(2 * 4 * 2**29 / copy, 2 * 8192**3 / matmul)
    report.add(part="ceiling", tb_per_s=found.bytes_per_us / 1e6, tflops=found.flops_per_us / 1e6)
    return found


def random(*shape: int, dtype: torch.dtype = ACT) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def copies(nbytes: int) -> int:
    """How many sets of operands outgrow the second-level cache."""
    return max(2, min(32, math.ceil(2e8 / nbytes)))


def cuts(stack: Stack, rows: int) -> Iterator[Tile]:
    """Tiles worth trying for a launch."""
    for text, spread in product(CUTS[bucket(rows)], ("+", "") if stack.segments > 1 else ("",)):
        tile = Tile.parse(text + spread)
        programs = stack.programs(tile, rows)
        sums = tile.block_o * tile.block_n // (32 * tile.warps)
        two = stack.segments > 1 and not spread
        if stack.holds(tile) and not (two and (sums > 64 or programs < 90)):
            yield tile


def operand(stack: Stack, rows: int) -> torch.Tensor:
    """x [planes x rows, columns] of the greatest column any region reads."""
    columns = max(region.column + region.inner for region in stack.regions)
    return random(stack.planes * rows, columns)


def stacks(report: Report, limits: Ceilings) -> None:
    """Every launch of a layer with every tile, beside the library; the best are kept as chosen."""
    for geometry in report.geometries:
        for name, make in launches(GEOMETRIES[geometry]).items():
            first = make()
            found = [first, *(make() for _ in range(copies(first.weight.nbytes) - 1))]
            for rows in TUNED:
                if report.left() < 0:
                    return
                _launch(report, limits, f"{geometry} {name}", rows, found)


def _launch(report: Report, limits: Ceilings, name: str, rows: int, found: Sequence[Stack]) -> None:
    launch, stack = Stacks(dependent=True), found[0]
    dtype = torch.float32 if name.endswith("head") else None
    x = operand(stack, rows)
    weights = sum(region.width * region.inner for region in stack.regions)
    inputs = {(region.plane, region.column): region.inner for region in stack.regions}
    moved = 2 * (weights + rows * (sum(inputs.values()) + stack.shape[0]))
    library = timed([partial(_library, x, one, rows) for one in found], 3)
    wanted = whole(launch(x, stack, dtype))
    alone = whole(launch(x[:1], stack, dtype)) if stack.planes == 1 else None
    error = _distance(x, stack, rows, wanted)
    same = alone is None or torch.equal(alone, wanted[:1])
    times, tiles = {}, {}
    for tile in cuts(stack, rows):
        if not torch.equal(whole(launch(x, stack, dtype, tile)), wanted):
            report.add(part="stack", launch=name, rows=rows, other_bits=str(tile))
            continue
        tiles[str(tile)] = tile
        calls = [partial(launch, x, one, dtype, tile) for one in found]
        times[str(tile)] = round(timed(calls, 3), 3)
    best = min(times, key=times.__getitem__)
    report.tiles[(*stack.shape, bucket(rows))] = tiles[best]
    report.add(
        part="stack",
        launch=name,
        rows=rows,
        us=times[best],
        tile=best,
        library_us=library,
        floor_us=limits.floor(moved, 2.0 * rows * weights),
        error=error,
        row_alone=same,
        all_us=times,
    )


def whole(out: torch.Tensor) -> torch.Tensor:
    """[N, O] of what a launch gives."""
    return added(out) if out.dim() == 3 else out


def _distance(x: torch.Tensor, stack: Stack, rows: int, got: torch.Tensor) -> float:
    """Relative distance of the first plain region from float64."""
    region = next((one for one in stack.regions if one.activation is None), None)
    if region is None:
        return 0.0
    plane = x[region.plane * rows :][:rows, region.column :][:, : region.inner].double()
    wide = slice(region.begin, region.begin + region.width)
    wanted = plane @ stack.weight[wide, : region.inner].double().T
    return float((got[:, wide].double() - wanted).norm() / wanted.norm())


def _library(x: torch.Tensor, stack: Stack, rows: int) -> list[torch.Tensor]:
    planes = x.view(stack.planes, rows, x.shape[1])
    return [
        planes[one.plane][:, one.column : one.column + one.inner]
        @ stack.weight[one.begin : one.begin + one.width, : one.inner].T
        for one in stack.regions
    ]


def kernels(report: Report, limits: Ceilings) -> None:
    """The recurrence with every cut, and the norms with shift and mixes, per call."""
    for rows, tokens in ((1, 1), (64, 1), (128, 1), (256, 1), (1024, 1), (1, 512), (32, 512)):
        for state in (torch.float16, torch.float32):
            if report.left() < 0:
                return
            _recurrence(report, limits, rows, tokens, state)
    for rows in (1, 64, 256, 1024):
        _mixes(report, limits, rows)


def times(report: Report, limits: Ceilings) -> None:
    """The recurrence with the cuts that are used."""
    for rows, tokens in ((1, 1), (64, 1), (256, 1), (1, 512), (1, 1024), (32, 32), (4, 512)):
        for state in (torch.float16, torch.float32):
            _recurrence(report, limits, rows, tokens, state, USED_CUTS)


def _mixes(report: Report, limits: Ceilings, rows: int) -> None:
    """Residual, norm and mixes, with four planes of sums and with one."""
    config = replace(GEOMETRIES["1.5B"], layers=1, vocab=64)
    model = rwkv7.Rwkv7Model.build(config, device_weights(config), TritonOps(DEVICE, ACT), "F16")
    bank = Bank(model.layout, rows, DEVICE)
    batch = pack([Row(slot=slot, tokens=(0,)) for slot in range(1, rows + 1)], DEVICE)
    layer, x = model.weights.layers[0], random(rows, config.width)
    norm = (layer.ln1_weight, layer.ln1_bias, 1e-5)
    for mixes, planes in ((6, 4), (1, 4), (6, 1), (1, 1)):
        parts = random(planes, rows, config.width).float()
        arguments = (x, None, parts, *norm, layer.mixes[:mixes], bank.layers("shift_att")[0], batch)
        report.add(
            part="mixes",
            rows=rows,
            mixes=mixes,
            planes=planes,
            us=timed([partial(model.fused._mix, *arguments)] * 24),
            floor_us=limits.floor(rows * config.width * (8 + 4 * planes + 2 * mixes)),
        )


def _recurrence(
    report: Report,
    limits: Ceilings,
    rows: int,
    tokens: int,
    state: torch.dtype,
    tried: Sequence[tuple[int, int, int | None]] = TIME_CUTS,
) -> None:
    """The fused recurrence of `rows` rows of `tokens` tokens, with every cut."""
    heads, size, total = 32, 64, rows * tokens
    width, pitch = heads * size, 3 * heads * size + 576
    plan = [Row(slot=slot, tokens=(0,) * tokens) for slot in range(1, rows + 1)]
    batch, cells = pack(plan, DEVICE), heads * size * size
    downs, first, ups = random(total, pitch), random(total, pitch), random(total, 4 * width)
    vectors = random(heads, 8, size).float()
    out = torch.empty(total, width, dtype=ACT, device=DEVICE)
    y, keys = random(total, width).float(), random(total, heads, 6, size).float()
    bonus, block = random(total, heads).float(), rwkv7_fused.PROMPT_HEADS
    count = copies(rows * cells * state.itemsize) if tokens == 1 else 2
    banks = torch.zeros(count, rows + 1, heads, size, size, dtype=state, device=DEVICE)
    operands = (downs, ups, first, vectors)
    read = {"PITCH": pitch, "GATED": True}
    common = {
        "HEADS": heads,
        "DEPENDENT": True,
        "launch_pdl": True,
        "num_warps": 1,
        "enable_fp_fusion": False,
    }

    def single(bank: torch.Tensor, stages: int, each: int, registers: int | None) -> None:
        token_kernel[(heads, min(rows, each * 132 // heads))](
            *operands,
            bank,
            out,
            batch.slots,
            rows,
            STRIDE=cells,
            EPS=64e-5,
            STAGES=stages,
            maxnreg=registers,
            **read,
            **common,
        )

    wide, blocks = state.itemsize == 2, (total, heads // block)
    few = {**common, "num_warps": block, "BLOCK_H": block}

    def before(bank: torch.Tensor) -> None:
        prompt_keys_kernel[blocks](*operands, keys, bonus, WIDE=wide, **read, **few)

    def chain(bank: torch.Tensor, warps: int = rwkv7_fused.PROMPT_WARPS) -> None:
        shared = {**common, "num_warps": warps, "WIDE": wide}
        prompt_kernel[(4 * heads, rows)](
            keys, bank, y, batch.slots, batch.starts, STRIDE=cells, **shared
        )

    def behind(bank: torch.Tensor) -> None:
        prompt_output_kernel[blocks](y, keys, bonus, ups, vectors, out, EPS=64e-5, **few)

    def prompt(bank: torch.Tensor) -> None:
        for part in (before, chain, behind):
            part(bank)

    parts = {"keys": before, "output": behind}
    parts |= {f"chain {warps} warps": partial(chain, warps=warps) for warps in (1, 2, 4)}

    if report is None:
        for cut in tried:
            single(banks[0], *cut)
        for part in parts.values():
            part(banks[0])
        return
    found = {"prompt": round(timed([partial(prompt, bank) for bank in banks], 3), 3)}
    for name, part in parts.items() if tokens > 1 else ():
        found[name] = round(timed([partial(part, bank) for bank in banks], 3), 3)
    for cut in tried if tokens == 1 else ():
        calls = [partial(single, bank, *cut) for bank in banks]
        found["s{}x{}r{}".format(*cut)] = round(timed(calls, 3), 3)
    report.add(
        part="recurrence",
        state=str(state)[6:],
        rows=rows,
        tokens=tokens,
        floor_us=limits.floor(rows * cells * 2 * state.itemsize + 2 * total * width * (8 + 1)),
        all_us=found,
    )


def device_weights(config: rwkv7.Rwkv7Config) -> dict[str, torch.Tensor]:
    """Random tensors of that geometry, drawn on the device."""
    tensors = {}
    for name, shape in rwkv7.shapes(config).items():
        noise = torch.randn(shape, device=DEVICE)
        if len(shape) == 2 and not name.endswith("r_k"):
            inner = shape[0] if name[-1] in "12" else shape[1]
            tensors[name] = noise / inner**0.5
        else:
            tensors[name] = 0.1 * noise + (1.0 if "ln" in name and "weight" in name else 0.0)
    return tensors


def build(report: Report, name: str, tensors: dict[str, torch.Tensor], state: str) -> Any:
    """A model with the tiles that were chosen."""
    ops = TritonOps(DEVICE, ACT)
    ops.stacks = Stacks(report.tiles, True)
    return rwkv7.Rwkv7Model.build(GEOMETRIES[name], tensors, ops, state)


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
                _prefill_steps(report, name, model, bank)
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
    """Whole steps with and without dependent launch, and with weights asked for ahead."""
    ops, fused = model.ops, model.fused
    kept = dict(ops.launch), launch_triton.DEPENDENT_ROWS

    def depend(rows: int) -> None:
        for module in (launch_triton, rwkv7_fused, stacks_triton):
            module.DEPENDENT_ROWS = rows

    def ask(channels: int, head: int) -> None:
        for layer in fused._layers:
            for stack in layer.stacks():
                stack.ahead = min(channels, stack.length)
        fused._head.ahead = head

    for rows in (1, 32, 64, 128, 256, 512):
        found = {}
        depend(0)
        found["plain"] = _step_us(model, bank, rows)
        depend(1024)
        for channels, head in ((0, 0), (128, 0), (256, 0), (256, 256), (512, 0), (1024, 0)):
            ask(channels, head)
            found[f"ahead {channels} head {head}"] = _step_us(model, bank, rows)
        ask(256, 256)
        report.add(part="launch", geometry=name, rows=rows, us=found)
    ops.launch = kept[0]
    depend(kept[1])


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
            _prefill_steps(report, name, model, bank, GRAPHED, part, graphs)
            if warps is None:
                _same_prompts(report, name, model, graphs, bank)
        _prefill_steps(report, name, model, bank, GRAPHED, "prefill eager")


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


def chunks(report: Report, limits: Ceilings) -> None:
    """Prompts of the fast mode by a library's chunked recurrence, in eager passes."""
    for name in report.geometries:
        tensors, config = device_weights(GEOMETRIES[name]), GEOMETRIES[name]
        model = rwkv7.Rwkv7Model.build(config, tensors, mode_ops("fast"), "F16")
        bank = Bank(model.layout, 32, DEVICE)
        assert model.ops.chunked is not None, "the library with the chunked recurrence is missing"
        _prefill_steps(
            report, name, model, bank, ((1, 512), (1, 2048), (1, 8192)), "prefill chunks"
        )


def mode_ops(mode: str) -> TritonOps:
    if mode == "exact":
        return TritonOps(DEVICE, ACT)
    return FastOps(DEVICE, ACT, 64) if mode == "fast" else TritonOps(DEVICE, ACT, LibraryLinear())


def _prefill_steps(
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


def warm(geometries: Sequence[str], parts: Sequence[str]) -> None:
    """Compile what the parts measure, in many processes, into the kernel cache on disk."""
    jobs: list[Callable[[], None]] = []
    if "modes" in parts:
        jobs += [
            partial(_compile_pass, geometry, "F16", 64, 1, "library") for geometry in geometries
        ]
    if "prompts" in parts:
        for geometry in geometries:
            jobs += [partial(_compile_pass, geometry, "F16", rows, 2) for rows in (1, 128)]
    if "steps" in parts:
        for geometry, state in product(geometries, ("F16", "F32")):
            for rows, tokens in ((1, 1), (256, 1), (1, 64), (1, 256)):
                jobs.append(partial(_compile_pass, geometry, state, rows, tokens))
    if "times" in parts:
        for cut, state in product(USED_CUTS, (torch.float16, torch.float32)):
            jobs.append(partial(_compile_recurrence, cut, state))
    if "kernels" in parts:
        for cut, state in product(TIME_CUTS, (torch.float16, torch.float32)):
            jobs.append(partial(_compile_recurrence, cut, state))
    names = ("ffn value", "output", "downs", "ups", "ffn key", "head")
    for rows, geometry, name in product(reversed(TUNED), geometries, names):
        jobs.append(partial(_compile_launch, geometry, name, rows, "stacks" in parts))
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        for job in [pool.apply_async(job) for job in jobs]:
            job.get()
    sys.stdout.write(f"{len(jobs)} jobs\n")


@torch.inference_mode()
def _compile_launch(geometry: str, name: str, rows: int, every: bool) -> None:
    stack, launch = launches(GEOMETRIES[geometry])[name](), Stacks(TILES, True)
    dtype = torch.float32 if name == "head" else None
    for tile in (None, *(cuts(stack, rows) if every else ())):
        launch(operand(stack, rows), stack, dtype, tile)


@torch.inference_mode()
def _compile_recurrence(cut: tuple[int, int, int | None], state: torch.dtype) -> None:
    _recurrence(None, None, 1, 1, state, (cut,))


@torch.inference_mode()
def _compile_pass(geometry: str, state: str, rows: int, tokens: int, mode: str = "exact") -> None:
    # two layers have all kernels: the first one's and the others'
    config = replace(GEOMETRIES[geometry], layers=2)
    model = rwkv7.Rwkv7Model.build(config, device_weights(config), mode_ops(mode), state)
    plan = [Row(slot=slot, tokens=(slot,) * tokens) for slot in range(1, rows + 1)]
    model.logits(model.forward(Bank(model.layout, rows, DEVICE), pack(plan, DEVICE)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("kernels.json"))
    parser.add_argument("--parts", default="stacks,steps,kernels")
    parser.add_argument("--geometries", default="1.5B")
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--commit", default="unknown", help="what is measured, for the summary")
    parser.add_argument("--warm", action="store_true", help="only fill the kernel cache")
    options = parser.parse_args()
    if options.warm:
        warm(options.geometries.split(","), options.parts.split(","))
        return
    report = Report(
        out=options.out,
        budget=options.budget,
        geometries=tuple(options.geometries.split(",")),
    )
    torch.manual_seed(1)
    with torch.inference_mode():
        limits = ceilings(report)
        parts = {"stacks": stacks, "kernels": kernels, "steps": steps, "launches": launched}
        parts |= {"prompts": prompts, "modes": modes, "chunks": chunks, "times": times}
        for part in options.parts.split(","):
            parts[part](report, limits)
            report.write()
    short = summary(report.results, options.commit)
    options.out.with_suffix(".summary.json").write_text(json.dumps(short, indent=1) + "\n")


if __name__ == "__main__":
    main()
