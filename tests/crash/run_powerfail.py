"""Power failures: `python tests/crash/run_powerfail.py [--states N] [--mutant NAME]`.

Records every system call by which real lives change their files (recorder.c), proves that none was
missed, and derives the states that a power failure may leave at any instant (disk.py). Each is
opened by the real code and compared with what had been acknowledged by then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import checks  # isort: skip
import disk  # isort: skip
import recording  # isort: skip
from mutants import MUTANTS  # isort: skip
from oracle import Oracle  # isort: skip
from run_kill import tiny_model  # isort: skip
from stories import Stories  # isort: skip
from world import make_guest  # isort: skip

PER_RUN = 100  #: states of one recorded run


class Bench:
    """Opens states one after the other."""

    def __init__(self, base: Path, guest: str = "toy") -> None:
        """`guest`: `toy`, or the folder of a checkpoint."""
        self._base = base
        self.kind = guest
        self._guest = make_guest(guest)
        self.oracle = Oracle(make_guest(guest), 1 if guest == "toy" else 64)
        self.count: Counter[str] = Counter()
        self.faults: list[str] = []

    def open(self, files: dict[str, bytes], stories: Stories, rng: random.Random) -> None:
        """One state; SQLite's -shm is what a start must not trust."""
        folder = self._base / "state"
        for name in [name for name in files if name.endswith("-shm")]:
            files[name] = rng.randbytes(rng.choice((0, 3, 32768)))
        disk.write(files, folder)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        try:
            report = asyncio.run(
                checks.check(
                    folder / "data",
                    stories,
                    self._guest,
                    self.oracle,
                    lives=1,
                    images=None if self.kind == "toy" else 6,
                )
            )
        finally:
            shutil.rmtree(folder)
        self.count["states"] += 1
        for key in ("images", "tokens", "acks", "continuations"):
            self.count[key] += report.count[key]
        self.faults += [f"state {self.count['states']}: {fault}" for fault in report.faults]


def fail_power(bench: Bench, run: recording.Recording, states: int, rng: random.Random) -> None:
    """States of one recording: half of the instants right behind an acknowledgement."""
    acks = str(run.root / recording.ACKS).encode()
    told: dict[int, bytes] = {}  # by place in the log
    fds = set[int]()
    for n, entry in enumerate(run.log):
        if entry.call is disk.Call.OPEN:
            (fds.add if entry.data == acks else fds.discard)(entry.fd)
        elif entry.call is disk.Call.WRITE and entry.fd in fds:
            told[n] = entry.data
    tells = [n for n, line in told.items() if b'"ack"' in line]
    points = Counter(rng.choice(tells) for _ in range(states // 2))
    points.update(rng.randrange(len(run.log)) for _ in range(states - states // 2))
    played, stories = run.disk(), Stories()
    for n, entry in enumerate(run.log):
        played.play(entry)
        if n in told:
            stories.read(told[n].split(b"\n"))
        for _ in range(points[n]):
            bench.open(played.fail(rng), stories, rng)
    bench.count["calls"] += len(run.log)
    bench.count["syncs"] += played.syncs


def sample(
    bench: Bench, base: Path, number: int, states: int, mutant: str | None, *, steps: int = 12
) -> None:
    """Record one run, check that nothing was missed, and open states of it.

    Of three, one begins with a life that is killed, and its recovery is recorded too; one ends with
    a drain.
    """
    rng = random.Random(number)
    run = recording.Recording(base / f"run-{number}")
    if number % 3 == 1:
        stop = rng.randrange(500, 1500)
        run.live(1000 + number, steps=500, stop=stop, mutant=mutant, guest=bench.kind)
    run.live(number, steps=steps, mutant=mutant, end=number % 3 == 2, guest=bench.kind)
    missed = recording.differences(run)
    assert not missed, f"the recording does not explain {missed}"
    bench.count["runs"] += 1
    fail_power(bench, run, states, rng)
    shutil.rmtree(base / f"run-{number}")


def fill(bench: Bench, base: Path, states: int, mutant: str | None, share: int = PER_RUN) -> int:
    """Open so many states, `share` of each recorded run, say what came of it, count the faults."""
    began, number = time.monotonic(), 0
    while bench.count["states"] < states:
        left = states - bench.count["states"]
        sample(bench, base, number, min(share, left), mutant)
        number += 1
        if mutant and bench.faults:
            break
    count = "  ".join(f"{key} {value}" for key, value in sorted(bench.count.items()))
    kind = "toy" if bench.kind == "toy" else "real guest"
    sys.stdout.write(
        f"power fails, {kind}  faults {len(bench.faults)}  {count}  "
        f"{time.monotonic() - began:.0f} s\n"
    )
    for fault in bench.faults[:5]:
        sys.stdout.write(f"    {fault}\n")
    sys.stdout.flush()
    return len(bench.faults)


def main() -> int:
    """Open the states; 0 if nothing was found, or, with a mutant, if it was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--model-states", type=int, default=60, help="of lives of the real guest")
    parser.add_argument("--mutant", choices=MUTANTS, help="build a fault in and look for it")
    parser.add_argument("--folder", type=Path, help="where to work; default: in memory")
    options = parser.parse_args()
    if recording.compiler() is None:
        sys.stdout.write("no C compiler (cc, gcc or clang): the recorder cannot be built\n")
        return 2
    memory = Path("/dev/shm")  # a crash state needs no disk of its own
    where = options.folder or (memory if os.access(memory, os.W_OK) else None)
    found = 0
    with tempfile.TemporaryDirectory(dir=where) as name:
        base = Path(name)
        found += fill(Bench(base), base, options.states, options.mutant)
        if options.model_states and not options.mutant:
            model = tiny_model(base / "model")
            found += fill(Bench(base, str(model)), base, options.model_states, None, share=20)
    if options.mutant:
        sys.stdout.write(f"mutant {options.mutant!r}: {'caught' if found else 'NOT CAUGHT'}\n")
        return 0 if found else 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
