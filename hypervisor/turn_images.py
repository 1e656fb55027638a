"""Checkpoints of an actor in the middle of a turn."""

from __future__ import annotations

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.turn import Turn


class TurnImages:
    """The stage of one turn: one image at a time, off the step path."""

    def __init__(self, tasks: Tasks, residency: Residency, actor: Actor) -> None:
        self._tasks = tasks
        self._residency = residency
        self._actor = actor
        self._segment = actor.segment
        self._absorbed = actor.absorbed  # before the turn
        self._busy = False

    def due(self, taken: int) -> bool:
        tokens = self._absorbed + taken - self._actor.imaged
        return not self._busy and self._residency.states.checkpoints.due(tokens)

    def keep(self, turn: Turn, taken: int, row: bytearray) -> None:
        self._busy = True
        self._tasks.spawn(self._keep(turn, self._absorbed + taken, row))

    async def _keep(self, turn: Turn, absorbed: int, row: bytearray) -> None:
        """Write the image once the journal has every token that it stands for."""
        try:
            if await turn.reached(absorbed + 1):
                states, place = self._residency.states, (self._segment, absorbed + 1)
                await states.cache(self._actor, *place, row, absorbed)
        finally:
            self._busy = False
