"""The whole hypervisor against a plain model, as long as one likes.

    python tests/model/run.py [--operations N] [--seed N] [--store] [--mutant NAME] [--crowd]

Prints one line of what was done, or the shortest life in which hypervisor and model differ. With
`--mutant` a fault is put in, and the line says what found it; `--crowd` lets many clients run at
once.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from statemodel.crowd import throng
from statemodel.machine import Life, StoredLife
from statemodel.mutants import MUTANTS

from statevisor.store.db import migrate


def live(
    machine: type[Life],
    operations: int,
    number: int,
    *,
    steps: int = 60,
    shrink: bool = True,
    mutant: str | None = None,
) -> int:
    """Run about so many operations; returns how many were done. Raises what a life raises."""
    fields = {"operations": 0}
    if mutant is not None:
        fields["spoil"] = staticmethod(MUTANTS[mutant])
    kind = seed(number)(type(machine.__name__, (machine,), fields))
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=max(1, operations // steps),
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
    return kind.operations


def catch(mutant: str, operations: int, number: int) -> BaseException | None:
    """What finds a mutant, if anything does within so many operations.

    Whatever a broken hypervisor raises counts, but for a life that took too long: on a busy machine
    a whole one does, too.
    """
    try:
        live(Life, operations, number, steps=40, shrink=False, mutant=mutant)
    except TimeoutError:
        return None
    except Exception as found:
        return found
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="operations of one life")
    parser.add_argument("--store", action="store_true", help="on SQLite and slab files")
    parser.add_argument("--mutant", choices=[*MUTANTS], help="a fault that must be found")
    parser.add_argument("--crowd", action="store_true", help="many clients at once")
    options = parser.parse_args()
    began = time.monotonic()
    if options.mutant:
        found = catch(options.mutant, options.operations, options.seed)
        told = "not found" if found is None else f"found: {type(found).__name__}: {found}"
        sys.stdout.write(f"{options.mutant}: {told[:300]}\n")
        return 1 if found is None else 0
    if options.crowd:
        done = throng(options.operations, options.seed)
    else:
        with TemporaryDirectory() as folder:
            StoredLife.migrated = migrate(Path(folder))
            machine = StoredLife if options.store else Life
            done = live(machine, options.operations, options.seed, steps=options.steps)
    seconds = time.monotonic() - began
    sys.stdout.write(f"{done} operations in {seconds:.0f} s, seed {options.seed}: all agree\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
