"""How often a process that serves looks for unreachable circles of objects.

Commands, turns and requests leave none behind; what there is comes of faults. To look for them
stops all threads, so it is seldom done.
"""

from __future__ import annotations

import gc
from typing import Final

#: Objects more than at the last look before the youngest are looked through, and how often those
#: before the next older ones. A step of hundreds of rows makes some thousands that go at once: with
#: fewer, every step is looked through.
SELDOM: Final = (10_000, 10, 10)


def settle() -> None:
    """Take what is loaded out of the collector's sight, and let it begin.

    Torch alone is a hundred thousand objects: looking through them would stop the steps of all
    actors now and then, and take seconds when the process ends.
    """
    # no collection before: it would take a good part of a second to find a few megabytes
    gc.freeze()
    gc.set_threshold(*SELDOM)
    gc.enable()
