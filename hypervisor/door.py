"""Where a turn's tokens wait until the turn itself is in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from statevisor.hypervisor.commands import TokenEvent
from statevisor.hypervisor.gate import OutputGate
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.turn import Turn


class Door:
    """Stands before the output gate, for one turn whose steps may begin before it is committed.

    A group of the gate is one row of many turns: a token of a turn that the journal does not know
    would fail them all.
    """

    def __init__(self, gate: OutputGate, segment: int, stream: TurnStream) -> None:
        self._gate = gate
        self._segment = segment
        self._stream = stream
        self._early: list[TokenEvent] | None = []

    def push(self, turn: Turn, events: Sequence[TokenEvent]) -> None:
        """Take drawn tokens."""
        if self._early is None:
            self._gate.push(turn, self._segment, self._stream, events)
        else:
            self._early += events

    def open(self, turn: Turn) -> None:
        """The turn is committed: what has waited goes to the gate, and the rest at once."""
        early, self._early = self._early, None
        if early:
            self._gate.push(turn, self._segment, self._stream, early)
