"""Steps of the demo's geometry on the CPU, drawing included: best and median of many.

    python tests/bench/guest_cpu.py [--threads N] [--rounds N]

Prints one JSON object: per case the tokens of a step, milliseconds and tokens per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch

from statevisor.guests.families.rwkv7 import Rwkv7Model
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, random_weights
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.runner import Runner
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.hypervisor.plan import Row, StepPlan
from statevisor.hypervisor.sampling import Draw, SamplerSettings

DEMO = Rwkv7Config(
    layers=8, width=256, heads=4, ffn=1024, rank_w=32, rank_a=32, rank_v=32, rank_g=64, vocab=272
)
DRAW = Draw(seed=1, position=1, settings=SamplerSettings(temperature=0.8, top_p=0.9))
#: Rows and tokens a row.
CASES = {"alone": (1, 1), "four": (4, 1), "sixteen": (16, 1), "prefill": (1, 512), "both": (9, 32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    model = Rwkv7Model.build(DEMO, random_weights(DEMO, 0), CpuOps(options.threads), "F32")
    model.ops.admit(model.matrices())
    guest = Runner(name="bench", model=model, tokenizer=ByteTokenizer(), slots=16, step_tokens=1024)
    found = {"torch": torch.__version__, "threads": options.threads}
    for name, (rows, length) in CASES.items():
        tokens = tuple(7 * at % DEMO.vocab for at in range(length))
        plan = StepPlan(
            rows=tuple(Row(slot=1 + row, tokens=tokens, draw=DRAW) for row in range(rows))
        )
        seconds = []
        for _ in range(max(3, options.rounds // (1 + rows * length // 32))):
            begun = time.perf_counter()
            guest.step(plan)
            seconds.append(time.perf_counter() - begun)
        best, median = min(seconds), statistics.median(seconds)
        found[name] = {
            "tokens": rows * length,
            "best_ms": round(best * 1e3, 2),
            "median_ms": round(median * 1e3, 2),
            "best_tokens_per_s": round(rows * length / best),
            "median_tokens_per_s": round(rows * length / median),
        }
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
