"""Eager decode passes of 1.5B layers for a profiler to look into, one after the other by rows.

    ncu --clock-control none --cache-control none --profile-from-start off --csv --page raw \
        --metrics METRICS python -P tests/bench/gpu_profile.py [--rows 1,64,128,256] > counters.csv
    python -P tests/bench/gpu_profile.py --read counters.csv

METRICS: `python -P tests/bench/gpu_profile.py --metrics`. A profiler runs kernels one at a time, so
what dependent launch hides is not hidden here: times are those of kernels alone with weights and
states in memory, as every layer has weights of its own.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

LAYERS = 3
ROWS = (1, 64, 128, 256)
#: The launches of a layer, in their order.
LAUNCHES = (
    "norm, six mixes",
    "r, k, v, downs",
    "ups",
    "recurrence",
    "output",
    "norm, one mix",
    "ffn key",
    "ffn value",
)
_KERNELS = ("stack_kernel", "residual_mix_kernel", "token_kernel")
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "wait",
    "barrier",
    "math_pipe_throttle",
    "lg_throttle",
)
COUNTERS = {
    "us": "gpu__time_duration.sum",
    "read MB": "dram__bytes_read.sum",
    "written MB": "dram__bytes_write.sum",
    "of memory %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor %": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "issue %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "programs": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
    **{name.replace("_", " "): _STALL.format(name) for name in STALLS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--state", choices=("F16", "F32"), default="F16")
    parser.add_argument("--metrics", action="store_true", help="print what to ask for")
    parser.add_argument("--read", type=Path, help="a profiler's output, to be told as a table")
    options = parser.parse_args()
    if options.metrics:
        sys.stdout.write(",".join(COUNTERS.values()) + "\n")
    elif options.read is not None:
        rows = [int(word) for word in options.rows.split(",")]
        sys.stdout.writelines(f"{line}\n" for line in table(options.read.read_text(), rows))
    else:
        passes([int(word) for word in options.rows.split(",")], options.state)


def passes(counts: list[int], state: str) -> None:
    """One profiled pass for each number of rows, behind one that compiles."""
    import torch
    from gpu_models import GEOMETRIES, device_weights
    from gpu_report import ACT, DEVICE

    from statevisor.guests.bank import Bank
    from statevisor.guests.families import rwkv7
    from statevisor.guests.graphs import DecodeRows
    from statevisor.guests.ops_triton import TritonOps

    config = replace(GEOMETRIES["1.5B"], layers=LAYERS)
    model = rwkv7.Rwkv7Model.build(config, device_weights(config), TritonOps(DEVICE, ACT), state)
    bank = Bank(model.layout, max(counts), DEVICE)
    batches = DecodeRows(max(counts), DEVICE)
    with torch.inference_mode():
        for count in counts:
            batch = batches.batch(count)
            batch.slots.copy_(torch.arange(1, count + 1, device=DEVICE))
            batch.tokens.copy_(torch.arange(count, device=DEVICE) + 7)
            model.forward(bank, batch)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            model.forward(bank, batch)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def table(text: str, counts: list[int]) -> Iterator[str]:
    """The middle layer's launches for each number of rows, as lines of Markdown."""
    found = list(launches(text))
    size = len(found) // len(counts)
    yield "| rows | launch | " + " | ".join(COUNTERS) + " |"
    yield "|" + "---|" * (2 + len(COUNTERS))
    for index, rows in enumerate(counts):
        first = index * size + len(LAUNCHES) * (LAYERS // 2)
        for name, one in zip(LAUNCHES, found[first : first + len(LAUNCHES)], strict=True):
            yield f"| {rows} | {name} | " + " | ".join(one) + " |"


def launches(text: str) -> Iterator[list[str]]:
    """Every launch of the model's own kernels: its counters, in the order of COUNTERS."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    header, units, *rest = csv.reader(lines)
    for row in rest:
        record = dict(zip(header, row, strict=True))
        if not record["Kernel Name"].startswith(_KERNELS):
            continue
        yield [
            _told(record, dict(zip(header, units, strict=True)), name) for name in COUNTERS.values()
        ]


def _told(record: dict[str, str], units: dict[str, str], name: str) -> str:
    scale: dict[str, Any] = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "byte": 1e-6}
    scale |= {"Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}
    value = record.get(name, "").replace(",", "")
    return f"{float(value) * scale.get(units.get(name, ''), 1):.4g}" if value else ""


if __name__ == "__main__":
    main()
