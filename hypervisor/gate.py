"""The output gate: no caller sees a token before the journal has it.

Tokens of all turns are pushed here by the step loop. One task commits whatever has gathered as one
packed group and then opens the gate for it; the next group is what gathered meanwhile. With
`durability="async"` the gate is open at once and the journal follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from statevisor.hypervisor.catalog_port import Catalog, JournalEntry
from statevisor.hypervisor.commands import TokenEvent
from statevisor.hypervisor.config import Durability
from statevisor.hypervisor.errors import Fenced, StatevisorError
from statevisor.hypervisor.ports import Clock, Meter
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.turn import Turn


@dataclass(slots=True)
class _Held:
    """Tokens of one turn that wait for the next group."""

    turn: Turn
    segment: int
    stream: TurnStream
    events: list[TokenEvent]


class OutputGate:
    """Commits generated tokens in groups and releases them to their streams."""

    def __init__(
        self, catalog: Catalog, durability: Durability, clock: Clock, meter: Meter
    ) -> None:
        self.incarnation = 0  #: of the process that owns the folder; set once it is claimed
        self._catalog = catalog
        self._open = durability == "async"
        self._clock = clock
        self._meter = meter
        self._held: dict[str, _Held] = {}
        self._wake = asyncio.Event()
        self._group: dict[str, _Held] = {}  #: what is being committed
        self._failed: dict[str, StatevisorError] = {}
        self._settling: dict[str, asyncio.Future[None]] = {}

    def push(
        self, turn: Turn, segment: int, stream: TurnStream, events: Sequence[TokenEvent]
    ) -> None:
        """Take drawn tokens; what follows a failed group is never committed."""
        key = turn.id
        if self._failed and key in self._failed:
            return
        held = self._held.get(key)
        if held is not None:
            held.events += events
        else:
            if not self._held:
                self._wake.set()
            self._held[key] = _Held(turn, segment, stream, list(events))
        if self._open:
            self._release(_Held(turn, segment, stream, list(events)), self._clock.monotonic())

    async def settled(self, turn: Turn) -> None:
        """Wait until every pushed token of a turn is committed. Raises: what the commit raised."""
        if turn.id in self._held or turn.id in self._group:
            settling = self._settling[turn.id] = asyncio.get_running_loop().create_future()
            await settling
        error = self._failed.pop(turn.id, None)
        if error is not None:
            raise error

    async def run(self) -> None:
        """Commit groups until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._group, self._held = self._held, {}
            if self._group:
                await self._commit(self._group)
                self._group = {}
                self._settle()

    def _release(self, held: _Held, now: float) -> None:
        """Open the gate for one turn's tokens."""
        first = held.events[0].index == 0
        name = "time_to_first_token_seconds" if first else "inter_token_latency_seconds"
        self._meter.observe(name, (now - held.turn.told_at) / (1 if first else len(held.events)))
        held.turn.told_at = now
        held.stream.put(held.events)

    async def _commit(self, group: dict[str, _Held]) -> None:
        entries = [
            JournalEntry(
                key,
                held.segment,
                held.events[0].position,
                tuple([event.token for event in held.events]),
            )
            for key, held in group.items()
        ]
        began = self._clock.monotonic()
        try:
            await self._catalog.journal(entries, incarnation=self.incarnation)
        except StatevisorError as error:
            if isinstance(error, Fenced):
                self._meter.count("fenced_writes_total")
            for held in group.values():
                self._failed[held.turn.id] = error
                self._held.pop(held.turn.id, None)  # tokens behind a gap are never committed
                held.turn.cancel()
        else:
            now = self._clock.monotonic()
            self._meter.observe("journal_commit_seconds", now - began)
            self._meter.observe("journal_group_rows", float(len(entries)))
            for held in group.values():
                held.turn.committed = held.events[-1].position + 1
                if not self._open:
                    self._release(held, now)

    def _settle(self) -> None:
        """Tell those of whose turns nothing waits any more."""
        for key in [key for key in self._settling if key not in self._held]:
            settling = self._settling.pop(key)
            if not settling.done():
                settling.set_result(None)
