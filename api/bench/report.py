"""What a measurement returns: the conditions it was made under, and quantiles of its samples."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

#: Every report is one JSON object: `bench`, `conditions`, and what was measured.
Report = Mapping[str, Any]


def conditions() -> dict[str, Any]:
    """The machine and the program that a figure belongs to."""
    return {
        "statevisor": version("statevisor"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def quantiles(samples: Sequence[float], *, digits: int = 4) -> dict[str, float]:
    """Tenth percentile, median, 99th and the extremes of samples, nearest rank, in their unit."""
    ordered = sorted(samples)

    def rank(percent: int) -> float:
        return round(ordered[max(0, -(-percent * len(ordered) // 100) - 1)], digits)

    return {
        "n": len(ordered),
        "min": round(ordered[0], digits),
        "p10": rank(10),
        "p50": rank(50),
        "p99": rank(99),
        "max": round(ordered[-1], digits),
    }


def progress(line: str) -> None:
    """Say on stderr how far a long measurement has come, so that a broken one loses less."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
