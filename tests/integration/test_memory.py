"""Memory does not grow with the number of actors: what is full is written, what is gone freed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from statevisor.api.bench.crowd import crowd
from statevisor.hypervisor.departures import Departures

ACTORS = 300
ROW_BYTES = 64 << 10
#: Most rounds come after the host tier is first full. A third of their states would be 5 MiB.
MOST_MIB = 5.0


async def growth(folder: Path) -> float:
    report = await crowd(folder, actors=ACTORS, row_bytes=ROW_BYTES, host_bytes=1 << 20)
    assert report["rounds"][-1]["images_mib"] > 8
    assert report["rounds"][1]["host_mib"] > 0.5
    return float(report["growth_mib"])


def leak() -> None:
    """A fault: a copy of every state that is written stays behind."""
    kept: list[bytes] = []
    write = Departures._write

    async def leaky(self: Any, actor: Any, row: Any, *more: Any) -> Any:
        kept.append(bytes(row))
        return await write(self, actor, row, *more)

    Departures._write = leaky  # type: ignore[method-assign]


def measured(folder: Path, *faults: str) -> float:
    """The growth in a process of its own: one that ran other tests has memory to give out."""
    child = [sys.executable, "-P", __file__, str(folder), *faults]
    done = subprocess.run(child, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_memory_stays_flat_while_actors_come_and_move(tmp_path: Path) -> None:
    assert measured(tmp_path) < MOST_MIB


def test_a_state_kept_by_mistake_is_seen(tmp_path: Path) -> None:
    assert measured(tmp_path, "leak") > MOST_MIB


if __name__ == "__main__":
    if "leak" in sys.argv:
        leak()
    sys.stdout.write(f"{asyncio.run(growth(Path(sys.argv[1])))}\n")
