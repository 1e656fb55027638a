"""kill -9 of the whole hypervisor: `python tests/crash/run_kill.py [--rounds N] [--mutant NAME]`.

Lives do random work on one folder after the other and are killed at a random instant; then at
every instrumented point of a short life; then with a small real model on the CPU. After each kill
a copy of the folder is opened by the real code and compared with what was acknowledged and with
uninterrupted twins; the next life goes on in the folder itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import checks  # isort: skip
from mutants import MUTANTS  # isort: skip
from oracle import Oracle  # isort: skip
from stories import Stories  # isort: skip
from world import make_guest  # isort: skip

LIVES = 6  #: on one folder


class Nursery:
    """The process that forks lives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def live(self, **order: Any) -> tuple[int, int]:
        """One life; how it ended and the calls it counted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code, calls = json.loads(self._process.stdout.readline())
        return code, calls


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Start the process, end it."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()


class Folder:
    """One data folder over several lives."""

    def __init__(self, base: Path, guest: str = "toy") -> None:
        self.data = base / "data"
        self.acks = base / "acks"
        self._base = base
        self._kind = guest
        every = 1 if guest == "toy" else 64
        self._guest = make_guest(guest)
        self._oracle = Oracle(make_guest(guest), every)
        self.stories = Stories()
        self.data.mkdir(parents=True)

    def order(self, number: int) -> dict[str, Any]:
        """A life in this folder."""
        self.acks.unlink(missing_ok=True)
        return {
            "folder": str(self.data),
            "acks": str(self.acks),
            "number": number,
            "guest": self._kind,
            "steps": 1000,
        }

    def check(self, lives: int = 3, images: int | None = None) -> checks.Report:
        """Compare a copy of the folder with all that was told."""
        if self.acks.exists():
            self.stories.read(self.acks.read_bytes().split(b"\n"))
        copy = self._base / "copy"
        shutil.copytree(self.data, copy)
        try:
            report = asyncio.run(
                checks.check(
                    copy, self.stories, self._guest, self._oracle, lives=lives, images=images
                )
            )
        finally:
            shutil.rmtree(copy)
        self.stories.settle(report.found, report.ids)
        return report


class Tally:
    """What all rounds came to."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.faults: list[str] = []

    def add(self, report: checks.Report, code: int) -> None:
        self.count["rounds"] += 1
        self.count["killed"] += code == -9
        self.count.update({key: report.count[key] for key in ("images", "continuations")})
        self.faults += report.faults
        if code not in (0, -9):
            self.faults.append(f"a life ended with {code}")

    def end(self, stories: Stories) -> None:
        self.count["tokens"] += stories.tokens
        self.count["acks"] += stories.done


def at_random(
    nest: Nursery, base: Path, rounds: int, mutant: str | None = None, guest: str = "toy"
) -> Tally:
    """Kill at a random instant of a life of up to a second or two."""
    tally, rng = Tally(), random.Random(rounds)
    real = guest != "toy"  # takes seconds to load, which are of no interest
    folder = None
    for number in range(rounds):
        if number % LIVES == 0:
            if folder is not None:
                tally.end(folder.stories)
            folder = Folder(base / f"random-{number}", guest)
        assert folder is not None
        order = folder.order(number)
        code, _ = nest.live(
            **order, after_s=rng.uniform(0.02, 4.0 if real else 1.5), from_ask=real, mutant=mutant
        )
        tally.add(folder.check(images=6 if real else None), code)
        if mutant and tally.faults:
            break
    if folder is not None:
        tally.end(folder.stories)
    return tally


def at_points(
    nest: Nursery, base: Path, stride: int, mutant: str | None = None, first: int = 1
) -> Tally:
    """Kill before and after every statement and every file operation of a short life."""
    tally = Tally()
    whole = Folder(base / "whole")
    code, calls = nest.live(**whole.order(0), tour=True, point=-1, mutant=None)
    assert code == 0, "a short life that nobody ends reaches its end"
    tally.count["points"] = calls
    for point in range(first, calls + 1, stride):
        folder = Folder(base / f"point-{point}")
        code, _ = nest.live(**folder.order(0), tour=True, point=point, mutant=mutant)
        tally.add(folder.check(lives=1), code)
        tally.end(folder.stories)
        shutil.rmtree(base / f"point-{point}")
        if mutant and tally.faults:
            break
    return tally


def at_statement(
    nest: Nursery,
    base: Path,
    begins: str,
    mutant: str | None = None,
    *,
    tries: int = 6,
    first: int = 1,
    committed: bool = False,
    guest: str = "toy",
) -> Tally:
    """Kill at the first, second, ... statement that begins so, or behind its commit."""
    tally = Tally()
    for n in range(first, first + tries):
        folder = Folder(base / f"statement-{n}", guest)
        code, _ = nest.live(
            **folder.order(n), tour=True, statement=[begins, n], committed=committed, mutant=mutant
        )
        tally.add(folder.check(lives=1), code)
        tally.end(folder.stories)
        if mutant and tally.faults:
            break
    return tally


def overtaken(nest: Nursery, base: Path, rounds: int, mutant: str | None = None) -> Tally:
    """A second owner takes the folder while the first still works."""
    tally = Tally()
    for number in range(rounds):
        folder = Folder(base / f"fence-{number}")
        code, _ = nest.live(**folder.order(number), fence=True, mutant=mutant)
        lines = folder.acks.read_bytes().split(b"\n")
        told = [json.loads(line) for line in lines if line.endswith(b"}")]
        at = next((n for n, one in enumerate(told) if one.get("op") == "overtaken"), None)
        late = told[at + 1 :] if at is not None else []
        tally.faults += [f"told by an owner that was overtaken: {one}" for one in late]
        if at is None:
            tally.faults.append(f"no second owner could take the folder: {told[-1]}")
        tally.count["rounds"] += 1
        tally.count["killed"] += code == -9
        tally.count["tokens"] += sum(one.get("op") == "token" for one in told)
        shutil.rmtree(base / f"fence-{number}")
        if mutant and tally.faults:
            break
    return tally


def tiny_model(folder: Path) -> Path:
    """A small RWKV-7 with random weights and the byte vocabulary."""
    from statevisor.guests.checkpoints import save_fla_folder
    from statevisor.guests.families.rwkv7 import Rwkv7Config, random_weights
    from statevisor.guests.tokenizer_bytes import ByteTokenizer

    config = Rwkv7Config(
        layers=3, width=128, heads=2, ffn=256, rank_w=8, rank_a=8, rank_v=8, rank_g=16, vocab=272
    )
    save_fla_folder(config, random_weights(config, seed=5), folder)
    ByteTokenizer().write(folder / "byte_tokenizer.json")
    return folder


def say(name: str, tally: Tally, began: float) -> None:
    """One line per part, then its faults."""
    count = "  ".join(f"{key} {value}" for key, value in sorted(tally.count.items()))
    sys.stdout.write(
        f"{name:12} faults {len(tally.faults)}  {count}  {time.monotonic() - began:.0f} s\n"
    )
    for fault in tally.faults[:5]:
        sys.stdout.write(f"    {fault}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the parts; 0 if nothing was found, or, with a mutant, if it was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200, help="kills at a random instant")
    parser.add_argument("--stride", type=int, default=1, help="between two instrumented points")
    parser.add_argument("--model-rounds", type=int, default=12, help="kills with the real guest")
    parser.add_argument("--fences", type=int, default=10, help="folders taken from their owner")
    parser.add_argument("--mutant", choices=MUTANTS, help="build a fault in and look for it")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary one")
    options = parser.parse_args()
    found = 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name, nursery() as nest:
        base, mutant = Path(name), options.mutant
        parts = {
            "random": lambda: at_random(nest, base, options.rounds, mutant),
            "points": lambda: at_points(nest, base, options.stride, mutant),
            "fence": lambda: overtaken(nest, base, options.fences, mutant),
        }
        if options.model_rounds and mutant is None:
            model = tiny_model(base / "model")
            parts["real guest"] = lambda: at_random(
                nest, base / "real", options.model_rounds, None, str(model)
            )
        for part, run in parts.items():
            began = time.monotonic()
            tally = run()
            found += len(tally.faults)
            say(part, tally, began)
            if mutant and found:
                break
    if mutant:
        sys.stdout.write(f"mutant {mutant!r}: {'caught' if found else 'NOT CAUGHT'}\n")
        return 0 if found else 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
