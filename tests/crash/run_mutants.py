"""Every built-in fault and what sees it: `python tests/crash/run_mutants.py` prints a table.

Each is looked for in its cheapest form, as the tests do; 0 if all were caught.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import recording  # isort: skip
import run_kill  # isort: skip
import run_powerfail  # isort: skip
from mutants import MUTANTS  # isort: skip


def power(base: Path, mutant: str) -> list[str]:
    """Faults in states of one recorded life."""
    run = recording.Recording(base / "run", compiled=recording.compiler() is not None)
    run.live(3, tour=True, mutant=mutant)
    bench = run_powerfail.Bench(base)
    rng = random.Random(2)
    for _ in range(5):
        run_powerfail.fail_power(bench, run, 6, rng)
        if bench.faults:
            break
    return bench.faults


def main() -> int:
    """Print the table."""
    missed = 0
    with run_kill.nursery() as nest:
        forms: dict[str, tuple[str, Callable[[Path, str], list[str]]]] = {
            "synchronous=NORMAL": ("power failure", power),
            "no slab sync": ("power failure", power),
            "row before bytes": (
                "kill behind a commit",
                lambda base, name: (
                    run_kill.at_statement(
                        nest, base, "INSERT INTO checkpoint", name, committed=True
                    ).faults
                ),
            ),
            "no fence": (
                "second owner",
                lambda base, name: run_kill.overtaken(nest, base, 3, name).faults,
            ),
            "early gate": (
                "kill before an insert",
                lambda base, name: (
                    run_kill.at_statement(nest, base, "INSERT INTO journal", name).faults
                ),
            ),
        }
        assert forms.keys() == MUTANTS.keys()
        for name, (form, look) in forms.items():
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                faults = look(Path(folder), name)
            missed += not faults
            seconds = time.monotonic() - began
            first = faults[0] if faults else "NOT CAUGHT"
            sys.stdout.write(f"{name:20} {form:22} {seconds:5.1f} s  {first[:110]}\n")
            sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
