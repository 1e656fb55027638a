"""Microseconds of one draw in a graph, by rows and settings, beside the plain sampler.

    python tests/bench/sampling.py [--vocab 65536]

One line of JSON per row count: the floor (logits read once at 4.2 TB/s), each kind of draw, and the
plain sampler with its waits for the host. Logits are random and rounded to bfloat16, as a head
gives them; three sets in turn, so that no replay finds its logits in the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch

from statevisor.guests import sampling_triton, step_triton
from statevisor.guests.device_results import DETAILS
from statevisor.guests.sampling import sample
from statevisor.guests.step_rows import SLOT, WIDTH, fill
from statevisor.hypervisor.plan import Row
from statevisor.hypervisor.sampling import Draw, SamplerSettings

KINDS = {
    "greedy": SamplerSettings(),
    "temperature": SamplerSettings(temperature=1.0),
    "top_k": SamplerSettings(temperature=1.0, top_k=50),
    "top_p": SamplerSettings(temperature=1.0, top_p=0.9),
    "top_k and top_p": SamplerSettings(temperature=0.8, top_k=50, top_p=0.9),
    "logprobs 5": SamplerSettings(logprobs=5),
}
SETS, ROUNDS = 3, 20


def replay_us(call) -> float:
    """Median of one call of a graph of `SETS` of them."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(SETS):
            call(at)
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / SETS)
    return round(statistics.median(times), 1)


def measure(rows: int, vocab: int) -> dict[str, float]:
    device = torch.device("cuda")
    sets = [torch.randn(rows, vocab, device=device).mul_(2).bfloat16().float() for _ in range(SETS)]
    numbers = dict.fromkeys(("results", "details", "last"))
    numbers["results"] = torch.zeros(rows, 2, dtype=torch.int64, device=device)
    numbers["details"] = torch.zeros(rows, DETAILS, dtype=torch.int64, device=device)
    numbers["last"] = torch.zeros(rows + 1, dtype=torch.int64, device=device)
    listed = torch.zeros(rows, vocab, dtype=torch.int32, device=device)
    hidden = torch.zeros(rows, 2048, dtype=torch.bfloat16, device=device)
    ids, amounts = torch.zeros(8, dtype=torch.int64, device=device), torch.zeros(8, device=device)
    shape = sampling_triton.shape_of(vocab)
    found = {"rows": rows, "floor": round(rows * vocab * 4 / 4.2e6, 1)}
    for name, settings in KINDS.items():
        draws = [Draw(seed=at, position=at, settings=settings) for at in range(rows)]
        host = torch.zeros(rows, WIDTH, dtype=torch.int64)
        fill(host.numpy(), [Row(slot=at + 1, tokens=(0,), draw=d) for at, d in enumerate(draws)])
        table = host.to(device)
        slots = table[:, SLOT].contiguous()

        def call(at: int, table=table, slots=slots) -> None:
            size = {"VOCAB": vocab, "TILE": shape.tile, "num_warps": shape.warps}
            size["enable_fp_fusion"] = False
            args = (sets[at], table, ids, amounts, amounts)
            step_triton.bias_kernel[(rows,)](*args, VOCAB=vocab, TILE=512)
            sampling_triton.draw_kernel[(rows,)](
                *(
                    sets[at],
                    hidden,
                    table,
                    slots,
                    numbers["last"],
                    listed,
                    numbers["results"],
                    2048,
                ),
                **{"C": 2048, "LIST": sampling_triton.LIST, **size},
            )
            step_triton.describe_kernel[(rows,)](
                *(sets[at], table, numbers["results"], ids, amounts, numbers["details"]),
                **{"FEW": 512, **size},
            )

        found[name] = replay_us(call)
    draws = [Draw(seed=at, position=at, settings=KINDS["top_p"]) for at in range(rows)]
    sample(sets[0], draws)
    begun = time.perf_counter()
    for _ in range(3):
        sample(sets[0], draws)
    found["plain top_p"] = round((time.perf_counter() - begun) / 3 * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=65536)
    options = parser.parse_args()
    for rows in (1, 32, 64, 256, 1024):
        sys.stdout.write(json.dumps(measure(rows, options.vocab)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
