"""How many moves there were between tiers, and how long each took."""

from __future__ import annotations

from statevisor.hypervisor.ports import Clock, Meter
from statevisor.hypervisor.vocab import Tier


class Moves:
    """Counts the moves of one guest's actors."""

    def __init__(self, clock: Clock, meter: Meter) -> None:
        self._clock = clock
        self._meter = meter

    def made(self, source: Tier, target: Tier, began: float) -> float:
        """A move has ended that began then, of the monotonic clock; returns its seconds."""
        labels = {"from": source.value, "to": target.value}
        seconds = self._clock.monotonic() - began
        self._meter.count("tier_moves_total", 1, **labels)
        self._meter.observe("tier_move_seconds", seconds, **labels)
        return seconds
