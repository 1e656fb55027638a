"""How often a step is given at once: as seldom as keeps guest and event loop busy.

A step that is given once is told soonest and lets others in soonest. But what the host does for it
takes time; given several times at once, a step costs the host hardly more than once. So it is given
more often where the guest has waited for the host, and where the event loop is late to take what
was read: then to tell it one by one only costs.
"""

from __future__ import annotations

from typing import Final

#: Most times: who arrives waits for what was given.
MOST: Final = 4
#: Of the time from one plan to the next, how late the event loop may be, and is where it keeps up.
_TOO_LATE, _IN_TIME = 1.0, 0.25
#: So often in a row the guest must have waited, or the event loop have been behind, or kept up.
_LATE, _BEHIND, _CALM = 2, 3, 8


class Pace:
    """The times of the next step that goes on."""

    def __init__(self) -> None:
        self.times = 1
        self._late = self._behind = self._calm = 0

    def guest(self, *, waited: bool) -> None:
        """A step was handed over; waited: all before it had ended, the guest had nothing to do."""
        self._late = self._late + 1 if waited else 0
        if self._late == _LATE:  # once may be a pause of the host's
            self._more()

    def loop(self, late: float) -> None:
        """The event loop took a plan: how late, of the time since the plan before was read."""
        self._behind = self._behind + 1 if late > _TOO_LATE else 0
        self._calm = self._calm + 1 if late < _IN_TIME else 0
        if self._behind == _BEHIND:
            self._more()
        elif self._calm == _CALM:
            self.times = max(self.times - 1, 1)
            self._calm = 0

    def _more(self) -> None:
        self.times = min(self.times + 1, MOST)
        self._late = self._behind = self._calm = 0
