"""Times the kernels and whole decode steps of RWKV-7 on a GPU against their byte floors.

    python tests/bench/kernels.py --out FILE [--parts gemm,kernels,steps] [--budget SECONDS]

Prints one line per measurement and writes all of them as JSON. Weights are random, of the true
geometry. A time is the median over replays of a CUDA graph that holds many calls on different
operands, so that neither launches nor cached operands are measured. A floor is the greater of
bytes (each operand once) over the copy rate and operations over the matrix rate, both measured in
the same run.
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
from statevisor.guests.linear_triton import Tile, TritonLinear, bucket, segments
from statevisor.guests.mixers.wkv7_triton import wkv7_kernel
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.ops_triton import TritonOps
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
#: Launches of one layer of the 1.5B geometry: shapes (O, K) of the products they hold.
LAUNCHES = {
    "rkv+downs": ((2048, 2048),) * 3 + ((96, 2048), (96, 2048), (256, 2048), (64, 2048)),
    "ups": ((2048, 96), (2048, 96), (2048, 256), (2048, 64)),
    "output": ((2048, 2048),),
    "ffn key": ((8192, 2048),),
    "ffn value": ((2048, 8192),),
    "head": ((65536, 2048),),
}
CUTS = (
    (64, 16, 4, 5),
    (64, 16, 4, 8),
    (64, 32, 4, 5),
    (64, 64, 4, 5),
    (64, 128, 4, 4),
    (128, 64, 8, 4),
    (128, 128, 8, 4),
    (128, 256, 8, 3),
)
#: (channels [v], warps) of one program of the recurrence.
WKV_CUTS = ((8, 1), (16, 1), (16, 2), (32, 1), (32, 2), (64, 2), (64, 4))


@dataclass
class Report:
    """Collects results, prints them and keeps within a budget of seconds."""

    out: Path
    budget: float
    results: list[dict[str, Any]] = field(default_factory=list)
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
        self.out.write_text(json.dumps({**head, "results": self.results}, indent=1))


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
    copy = timed([lambda: target.copy_(source)])
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


def cuts(shapes: Sequence[tuple[int, int]], rows: int) -> Iterator[Tile]:
    """Tiles worth trying for a launch."""
    whole = all(segments(shape) == 1 for shape in shapes)
    for (block_o, block_n, warps, stages), spread in product(CUTS, (True, False)):
        tile = Tile(block_o=block_o, block_n=block_n, warps=warps, stages=stages, spread=spread)
        programs = tile.programs(shapes, rows)
        if block_n > bucket(rows) or (whole and spread) or (block_n < 64 and rows > 64):
            continue
        if (block_n == 256 and not whole) or (spread and programs > 256) or (block_n * 8 < rows):
            continue
        if not spread and not whole and programs < 40:
            continue
        yield tile


def gemm(report: Report, limits: Ceilings) -> None:
    """Every launch of a layer with every tile, beside the library, and whether bits agree."""
    linear = TritonLinear(DEVICE)
    for name, shapes in LAUNCHES.items():
        nbytes = sum(features * inner for features, inner in shapes) * 2
        sets = [
            [(random(1024, k), random(o, k) / k**0.5, None) for o, k in shapes]
            for _ in range(copies(nbytes))
        ]
        for rows in ROWS:
            if report.left() < 0:
                return
            cut = [[(x[:rows], w, code) for x, w, code in one] for one in sets]
            moved = nbytes + sum(rows * (o + k) for o, k in shapes) * 2
            flops = sum(2.0 * rows * o * k for o, k in shapes)
            library = timed([lambda one=one: [x @ w.T for x, w, _ in one] for one in cut])
            wanted = linear.group(cut[0])
            found = {}
            for tile in cuts(shapes, rows):
                got = linear.group(cut[0], tile)
                if not all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)):
                    report.add(part="gemm", launch=name, rows=rows, other_bits=str(tile))
                    continue
                calls = [lambda one=one, tile=tile: linear.group(one, tile) for one in cut]
                found[str(tile)] = round(timed(calls, 3), 3)
            chosen = timed([lambda one=one: linear.group(one) for one in cut])
            best = min(found, key=found.__getitem__)
            report.add(
                part="gemm",
                launch=name,
                rows=rows,
                us=chosen,
                tile=str(linear.tile(shapes, rows, ACT)),
                best_us=found[best],
                best=best,
                library_us=library,
                floor_us=limits.floor(moved, flops),
                all_us=found,
            )


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
    for name, config in GEOMETRIES.items():
        tensors = device_weights(config)
        for state in ("F16", "F32"):
            ops = TritonOps(DEVICE, ACT)
            model = rwkv7.Rwkv7Model.build(config, tensors, ops, state)
            streamed = sum(weight.nbytes for weight in model.matrices())
            bank = Bank(model.layout, max(ROWS), DEVICE)
            for rows in ROWS:
                if report.left() < 0:
                    return
                us = _step_us(model, bank, rows)
                row = model.layout.row_bytes
                moved = streamed + rows * (2 * row + config.vocab * 4)
                matrix = streamed / 2 * 2.0 * rows / limits.flops_per_us
                floor = max(streamed / limits.bytes_per_us, matrix)
                floor += (moved - streamed) / limits.bytes_per_us
                report.add(
                    part="step",
                    geometry=name,
                    state=state,
                    rows=rows,
                    us=us,
                    tok_per_s=rows / us * 1e6,
                    floor_tok_per_s=rows / floor * 1e6,
                    of_floor=floor / us,
                )
            if state == "F32":
                _prefill_steps(report, name, model, bank)
            del bank, model
        del tensors


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
    jobs = {}
    for name, shapes in LAUNCHES.items():
        for rows in ROWS:
            for tile in cuts(shapes, rows):
                kept = (len(shapes), all(segments(shape) == 1 for shape in shapes), str(tile))
                jobs.setdefault(kept, (name, tile))
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        pool.starmap(_compile, jobs.values(), chunksize=2)


def _compile(name: str, tile: Tile) -> None:
    with torch.inference_mode():
        products = [(random(1, k), random(o, k), None) for o, k in LAUNCHES[name]]
        TritonLinear(DEVICE).group(products, tile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("kernels.json"))
    parser.add_argument("--parts", default="steps,kernels,gemm")
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
