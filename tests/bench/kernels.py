"""Times the kernels and whole decode steps of RWKV-7 on a GPU against their byte floors.

    python tests/bench/kernels.py --out FILE [--parts gemm,steps,kernels] [--budget SECONDS]

Prints one line per measurement and writes all of them as JSON. Weights are random, of the true
geometry. `gemm` tries tiles for every product and row bucket and checks that all give the same
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
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.families import rwkv7
from statevisor.guests.graphs import DecodeRows
from statevisor.guests.invariance import check_row_invariance
from statevisor.guests.linear_triton import Tile, TritonLinear, bucket, segment_length, segments
from statevisor.guests.mixers.wkv7_triton import wkv7_kernel
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.ops_triton import TritonOps
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
#: Tiles worth trying, by bucket.
CUTS: dict[int, tuple[str, ...]] = {
    16: (
        "64x16x64w4s5",
        "64x16x64w4s8",
        "64x16x128w4s4",
        "64x16x128w4s5",
        "64x16x256w4s3",
    ),
    32: ("64x16x64w4s5", "64x16x128w4s4", "64x32x64w4s5", "64x32x128w4s4"),
    64: ("64x32x64w4s5", "64x32x128w4s4", "64x64x64w4s5", "64x64x128w4s3"),
    128: ("64x64x64w4s5", "64x64x128w4s3", "64x128x64w4s4", "64x128x128w4s3"),
    256: ("64x64x64w4s5", "64x64x128w4s3", "64x128x64w4s4", "128x128x64w8s4"),
    512: ("64x64x64w4s5", "64x128x64w4s4", "128x128x64w8s4", "128x256x64w8s3"),
    1024: ("64x64x64w4s5", "64x128x64w4s4", "128x128x64w8s4", "128x256x64w8s3"),
}
#: (channels [v], warps) of one program of the recurrence.
WKV_CUTS = ((8, 1), (16, 1), (16, 2), (32, 1), (32, 2), (64, 2), (64, 4))


Shapes = tuple[tuple[int, int], ...]
Tiles = dict[tuple[int, int, int], Tile]


def launches(config: rwkv7.Rwkv7Config) -> dict[str, Shapes]:
    """Launches of a layer and the head: shapes (O, K) of the products each holds."""
    c, ranks = config.width, (config.rank_w, config.rank_a, config.rank_g, config.rank_v)
    return {
        "rkv+downs": ((c, c),) * 3 + tuple((rank, c) for rank in ranks),
        "ups": tuple((c, rank) for rank in ranks),
        "output": ((c, c),),
        "ffn key": ((config.ffn, c),),
        "ffn value": ((c, config.ffn),),
        "head": ((config.vocab, c),),
    }


@dataclass
class Report:
    """Collects results, prints them and keeps within a budget of seconds."""

    out: Path
    budget: float
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


def cuts(shapes: Shapes, rows: int) -> Iterator[Tile]:
    """Tiles worth trying for a launch."""
    whole = all(segments(shape) == 1 for shape in shapes)
    for text, spread in product(CUTS[bucket(rows)], ("+", "")):
        tile = Tile.parse(text + spread)
        programs = tile.programs(shapes, rows)
        # With segments, a tile of 256 rows needs more registers than there are.
        if (whole and spread) or (not whole and tile.block_n == 256):
            continue
        if not whole and (programs > 256 if spread else programs < 90):
            continue
        yield tile


def gemm(report: Report, limits: Ceilings) -> None:
    """Every launch of a layer with every tile, beside the library; the best are kept as chosen."""
    for geometry in ("1.5B", "191M"):
        for name, shapes in launches(GEOMETRIES[geometry]).items():
            nbytes = sum(features * inner for features, inner in shapes) * 2
            sets = [
                [(random(1024, k), random(o, k) / k**0.5, None) for o, k in shapes]
                for _ in range(copies(nbytes))
            ]
            for rows in TUNED:
                if report.left() < 0:
                    return
                _launch(report, limits, f"{geometry} {name}", shapes, rows, sets)


def _launch(
    report: Report,
    limits: Ceilings,
    name: str,
    shapes: Shapes,
    rows: int,
    sets: list[list[Any]],
) -> None:
    linear = TritonLinear(DEVICE)
    cut = [[(x[:rows], w, code) for x, w, code in one] for one in sets]
    weights = sum(features * inner for features, inner in shapes)
    moved = 2 * (weights + sum(rows * (o + k) for o, k in shapes))
    library = timed([partial(_library, one) for one in cut], 3)
    wanted = linear.group(cut[0])
    found, tiles = {}, {}
    for tile in cuts(shapes, rows):
        got = linear.group(cut[0], tile)
        if not all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)):
            report.add(part="gemm", launch=name, rows=rows, other_bits=str(tile))
            continue
        tiles[str(tile)] = tile
        found[str(tile)] = round(timed([partial(linear.group, one, tile) for one in cut], 3), 3)
    default = timed([partial(linear.group, one) for one in cut], 3)
    best = min(found, key=found.__getitem__)
    # The first layer's groups lack their last product.
    for held in (shapes, shapes[:-1]):
        if held:
            features, inner = sum(o for o, _ in held), max(k for _, k in held)
            report.tiles[features, inner, bucket(rows)] = tiles[best]
    report.add(
        part="gemm",
        launch=name,
        rows=rows,
        us=found[best],
        tile=best,
        default_us=default,
        library_us=library,
        floor_us=limits.floor(moved, 2.0 * rows * weights),
        all_us=found,
    )


def _library(products: list[Any]) -> list[torch.Tensor]:
    return [torch.mm(x, weight.T) for x, weight, _ in products]


def kernels(report: Report, limits: Ceilings) -> None:
    """The recurrence with every cut, and the elementwise kernels, per call."""
    ops = TritonOps(DEVICE, ACT)
    for rows in ROWS:
        if report.left() < 0:
            return
        batch = pack([Row(slot=slot, tokens=(0,)) for slot in range(1, rows + 1)], DEVICE)
        for state in (torch.float32, torch.float16):
            _recurrence(report, limits, ops, rows, state, batch)
        _elementwise(report, limits, ops, rows, batch, 2048)
    for rows in (1, 8, 32):
        _prefill(report, ops, rows, 512)


def _vectors(tokens: int, heads: int, size: int) -> list[torch.Tensor]:
    r, k, v, kk, a = (random(tokens, heads, size) for _ in range(5))
    kk = torch.nn.functional.normalize(kk.float(), dim=-1).to(ACT)
    decay = 0.55 + 0.45 * random(tokens, heads, size).float().sigmoid()
    return [r, decay, k, v, kk, a.sigmoid()]


def _recurrence(
    report: Report,
    limits: Ceilings,
    ops: TritonOps,
    rows: int,
    state: torch.dtype,
    batch: RaggedBatch,
) -> None:
    heads, size = 32, 64
    parts = _vectors(rows, heads, size)
    y = torch.empty(rows, heads, size, device=DEVICE)
    cells = heads * size * size
    count = copies(rows * cells * state.itemsize)
    banks = torch.zeros(count, rows + 1, heads, size, size, dtype=state, device=DEVICE)

    def call(bank: torch.Tensor, block: int, warps: int) -> None:
        wkv7_kernel[(heads * size // block, rows)](
            *parts,
            bank,
            y,
            batch.slots,
            batch.starts,
            HEADS=heads,
            STRIDE=cells,
            BLOCK_V=block,
            DEPENDENT=False,
            num_warps=warps,
            enable_fp_fusion=False,
        )

    found = {
        f"v{block}w{warps}": round(timed([partial(call, b, block, warps) for b in banks], 3), 3)
        for block, warps in WKV_CUTS
    }
    report.add(
        part="wkv",
        state=str(state)[6:],
        rows=rows,
        us=timed([partial(ops.wkv7, *parts, bank, batch) for bank in banks]),
        floor_us=limits.floor(rows * heads * size * (2 * size * state.itemsize + 5 * 2 + 2 * 4)),
        all_us=found,
    )


def _elementwise(
    report: Report, limits: Ceilings, ops: TritonOps, rows: int, batch: RaggedBatch, width: int
) -> None:
    norm = (random(width).float(), random(width).float(), 1e-5)
    mixes, heads = random(6, width).float().sigmoid(), width // 64
    x, shift = random(rows, width), random(rows + 1, width)
    parts, bias = [random(rows, width) for _ in range(6)], [random(width).float() for _ in range(5)]
    y, r_k = random(rows, heads, 64).float(), random(heads, 64).float()
    r, k, v = (random(rows, heads, 64) for _ in range(3))
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "layer_norm": (lambda: ops.layer_norm(x, *norm), 4),
        "shift_mix 6": (lambda: ops.shift_mix(x, *norm, mixes, shift, batch), 18),
        "shift_mix 1": (lambda: ops.shift_mix(x, *norm, mixes[:1], shift, batch), 8),
        "wkv7_inputs": (lambda: ops.wkv7_inputs(*parts, *bias, heads), 24),
        "wkv7_output": (
            lambda: ops.wkv7_output(y, r, k, v, parts[0], *bias[:2], r_k, 64e-5),
            14,
        ),
        "add": (lambda: x + parts[0], 6),
    }
    for name, (call, per_element) in calls.items():
        report.add(
            part="elementwise",
            kernel=name,
            rows=rows,
            us=timed([call] * 24),
            floor_us=limits.floor(rows * width * per_element),
        )


def _prefill(report: Report, ops: TritonOps, rows: int, tokens: int) -> None:
    plan = [Row(slot=slot, tokens=(0,) * tokens) for slot in range(1, rows + 1)]
    parts, batch = _vectors(rows * tokens, 32, 64), pack(plan, DEVICE)
    bank = torch.zeros(rows + 1, 32, 64, 64, device=DEVICE)
    us = timed([partial(ops.wkv7, *parts, bank, batch)] * 2)
    report.add(part="wkv prefill", rows=rows, tokens=tokens, us=us, us_per_token=us / tokens)


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


def steps(report: Report, limits: Ceilings) -> None:
    """Decode in one graph per batch size: embedding to argmax, the token fed back."""
    # Hashing gigabytes of random weights would take longer than all measurements.
    rwkv7.tensors_digest = lambda tensors: "random"
    for name, config in reversed(GEOMETRIES.items()):
        tensors = device_weights(config)
        ops = TritonOps(DEVICE, ACT, TritonLinear(DEVICE, report.tiles))
        model = rwkv7.Rwkv7Model.build(config, tensors, ops, "F16")
        bank = Bank(model.layout, max(ROWS), DEVICE)
        if name == "1.5B":
            _compare_launches(report, model, bank)
            ops.admit(model.matrices())
            check_row_invariance(model)
            report.add(part="check", geometry=name, rows_do_not_depend_on_rows=True)
        for state in ("F16", "F32"):
            ops = TritonOps(DEVICE, ACT, TritonLinear(DEVICE, report.tiles))
            model = rwkv7.Rwkv7Model.build(config, tensors, ops, state)
            bank = Bank(model.layout, max(ROWS), DEVICE)
            _steps(report, limits, name, model, bank)
            if state == "F32":
                _prefill_steps(report, name, model, bank)
        del bank, model, tensors


def _compare_launches(report: Report, model: Any, bank: Bank) -> None:
    """Whole steps with and without dependent launch of the products."""
    for rows in (1, 32, 128):
        found = {}
        for dependent in (True, False):
            model.ops._linear = TritonLinear(DEVICE, report.tiles, dependent)
            found[dependent] = _step_us(model, bank, rows)
        report.add(part="launch", rows=rows, us=found[True], not_dependent_us=found[False])
    model.ops._linear = TritonLinear(DEVICE, report.tiles)


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


def _prefill_steps(report: Report, name: str, model: Any, bank: Bank) -> None:
    for rows, tokens in ((1, 512), (1, 1024), (32, 32)):
        plan = [Row(slot=slot, tokens=(slot,) * tokens) for slot in range(1, rows + 1)]
        batch = pack(plan, DEVICE)
        times = []
        for _ in range(4):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model.logits(model.forward(bank, batch))
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        best = min(times)
        report.add(
            part="prefill",
            geometry=name,
            rows=rows,
            tokens=tokens,
            ms=best * 1e3,
            tok_per_s=rows * tokens / best,
        )


def warm() -> None:
    """Compile what `gemm` measures, in many processes, into the kernel cache on disk."""
    jobs: dict[Any, tuple[Shapes, Tile]] = {}
    for config, rows in product(GEOMETRIES.values(), TUNED):
        for shapes in launches(config).values():
            for tile in cuts(shapes, rows):
                even = all(segment_length(shape) % tile.step == 0 for shape in shapes)
                kept = (len(shapes), all(segments(shape) == 1 for shape in shapes), even, str(tile))
                jobs.setdefault(kept, (shapes, tile))
    slow_first = sorted(jobs.values(), key=lambda job: -job[1].block_o * job[1].block_n)
    with multiprocessing.get_context("spawn").Pool(10) as pool:
        pool.starmap(_compile, slow_first, chunksize=1)
    sys.stdout.write(f"{len(jobs)} kernels\n")


def _compile(shapes: Shapes, tile: Tile) -> None:
    with torch.inference_mode():
        products = [(random(1, k), random(o, k), None) for o, k in shapes]
        TritonLinear(DEVICE).group(products, tile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("kernels.json"))
    parser.add_argument("--parts", default="gemm,steps,kernels")
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--warm", action="store_true", help="only fill the kernel cache")
    options = parser.parse_args()
    if options.warm:
        warm()
        return
    report = Report(out=options.out, budget=options.budget)
    torch.manual_seed(1)
    with torch.inference_mode():
        limits = ceilings(report)
        for part in options.parts.split(","):
            {"gemm": gemm, "kernels": kernels, "steps": steps}[part](report, limits)
            report.write()


if __name__ == "__main__":
    main()
