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
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from gpu_models import GEOMETRIES, device_weights, mode_ops
from gpu_products import TUNED, cuts, launches, operand, stacks
from gpu_prompts import chunks, prompts
from gpu_recurrence import TIME_CUTS, USED_CUTS, kernels, recurrence, times
from gpu_report import DEVICE, Report, ceilings, summary
from gpu_steps import launched, modes, steps

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.families import rwkv7
from statevisor.guests.stacks_triton import Stacks
from statevisor.guests.tiles import TILES
from statevisor.hypervisor.plan import Row


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
    recurrence(None, None, 1, 1, state, (cut,))


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
