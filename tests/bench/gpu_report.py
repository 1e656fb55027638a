"""What the measurements of kernels share: the report, ceilings and times of graphs."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from statevisor.guests.linear_triton import Tile
from statevisor.guests.tiles import TILES

ACT = torch.bfloat16


DEVICE = torch.device("cuda", 0)


Tiles = dict[tuple[int, int, int], Tile]


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
