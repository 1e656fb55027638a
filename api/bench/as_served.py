"""The interpreter as a server sets it, for a measurement, and as it was behind it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from statevisor.api.garbage import settle
from statevisor.api.server import SWITCH_S


@contextmanager
def as_served() -> Iterator[None]:
    """Threads take turns, and garbage is looked for, as in a server; see `gathered` as well."""
    turns, thresholds, enabled = sys.getswitchinterval(), gc.get_threshold(), gc.isenabled()
    sys.setswitchinterval(SWITCH_S)
    settle()
    try:
        yield
    finally:
        sys.setswitchinterval(turns)
        gc.set_threshold(*thresholds)
        (gc.enable if enabled else gc.disable)()
        gc.unfreeze()


def gathered() -> None:
    """Leave nothing of what came before for the collector to look through."""
    gc.collect()
    gc.freeze()
