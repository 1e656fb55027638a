"""How often a step is given at once: as seldom as keeps the guest busy.

A step that is given once is told soonest and lets others in soonest. But what the host does for it
takes time, and once that is longer than the step, the guest waits for the host. Given several times
at once, a step costs the host hardly more than once.
"""

from __future__ import annotations

from statevisor.hypervisor.plan import MOST_TIMES

#: Of the time that fewer times would leave, what the host may need at most.
_SHARE = 0.8
#: So often in a row the guest must have waited, or the host have had time to spare.
_LATE, _EARLY = 2, 4


class Pace:
    """The times of the next plan that may be given again."""

    def __init__(self) -> None:
        self.times = 1
        self._late = 0
        self._spare = 0

    def late(self) -> None:
        """The guest had nothing to do before the next plan was handed over."""
        self._spare = 0
        self._late += 1
        if self._late == _LATE:  # once may be a pause of the host's
            self.times = min(self.times + 1, MOST_TIMES)
            self._late = 0

    def early(self, host_s: float, all_s: float) -> None:
        """The host waited for the guest; of `all_s` from one plan's end to the next it needed
        `host_s` itself."""
        self._late = 0
        fewer_s = all_s * (self.times - 1) / self.times
        self._spare = self._spare + 1 if host_s < _SHARE * fewer_s else 0
        if self._spare == _EARLY:
            self.times -= 1
            self._spare = 0
