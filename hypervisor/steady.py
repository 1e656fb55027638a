"""The wall clock as age is told by it: without the jumps that would make everything old at once."""

from __future__ import annotations

from statevisor.hypervisor.ports import Clock


class SteadyTime:
    """Wall time less what the clock was set forward since this began.

    What is judged by it is never found older than it is; after a jump backwards, or one forward
    that is corrected, it may be found younger, and is kept for longer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_us = clock.now_us()
        self._began = clock.monotonic()

    def now_us(self) -> int:
        """Microseconds since 1970, never more than the wall clock says."""
        elapsed_us = int((self._clock.monotonic() - self._began) * 1e6)
        return min(self._clock.now_us(), self._wall_us + elapsed_us)

    def ahead_us(self) -> int:
        """How far the wall clock is ahead of it."""
        return max(0, self._clock.now_us() - self.now_us())
