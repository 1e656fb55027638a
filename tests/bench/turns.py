"""What a turn costs the host beside its steps: `python -P tests/bench/turns.py [--turns N]`.

32 actors of a guest that costs next to nothing take turns of 8 tokens behind prompts of 3, each as
soon as its last has ended, over a real catalog. Prints one JSON object: turns a second, and the
processor's time of a turn, all threads together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from statevisor.api.bench.report import conditions
from statevisor.api.bench.stage import staged
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.commands import CreateActor, Generate
from statevisor.hypervisor.config import VisorConfig

ACTORS = 32


async def measure(turns: int, folder: Path) -> dict[str, float]:
    guest = ToyGuest(slots=ACTORS, step_tokens=512)
    async with staged(folder, guest, VisorConfig(host_bytes=0)) as stage:
        names = [f"a{index}" for index in range(ACTORS)]
        for name in names:
            await stage.visor.create(CreateActor(name=name, prompt="hello"))

        async def live(name: str) -> None:
            for _ in range(turns // ACTORS):
                turn = Generate(actor=name, prompt="abc", max_tokens=8, ignore_eos=True)
                await (await stage.visor.generate(turn)).result()

        began, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(live, names))
        seconds, used = time.perf_counter() - began, time.process_time() - used
    count = turns // ACTORS * ACTORS
    return {"turns_per_s": round(count / seconds, 1), "cpu_ms": round(used / count * 1e3, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=6400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(options.turns, Path(folder)))
    sys.stdout.write(json.dumps({"conditions": conditions() | vars(options), **found}) + "\n")


if __name__ == "__main__":
    main()
