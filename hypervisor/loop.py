"""The step loop of one guest: plan, step, commit, again.

A feed is one actor's stream of tokens into its slot. The loop knows nothing of turns, databases or
clients: it asks every feed what is due, runs one step and tells each feed what came of its row.
What a feed does then (journal, reply, stop) happens beside the loop, never in it.

Where the guest's steps run by themselves, the next step is planned and handed over while one runs,
and results are read one step late. A feed whose next token is not known yet says so (`FOLLOWING`),
and the guest puts it in; whether its row runs at all is then the guest's to see. A feed that cannot
foresee its next step sits one out. With one step at a time all this is the plain loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from statevisor.hypervisor import scheduler
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.plan import FOLLOWING, RowResult
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.sampling import Draw


class Feed(Protocol):
    """One actor's share of the loop; its methods run on the event loop and must not block."""

    slot: int

    def due(self, limit: int) -> Sequence[int]:
        """The next tokens to absorb, at most `limit`.

        FOLLOWING stands for the token that a row on its way will draw. Empty: nothing before the
        rows on their way are back; the feed is done if there are none.
        """
        ...

    def closes(self, count: int) -> bool:
        """Whether `count` due tokens are all that is known."""
        ...

    def draw(self) -> Draw | None:
        """The draw to make once all known tokens are absorbed."""
        ...

    def stops(self) -> frozenset[int]:
        """Drawn ids that end the feed, as far as it runs ahead: at most MOST_STOPS."""
        ...

    def launched(self, count: int, *, draws: bool) -> None:
        """A row with the next `count` due tokens is on its way."""
        ...

    def passed_over(self) -> None:
        """A row on its way was not run: what it was to follow has ended the feed."""
        ...

    def absorbed(self, count: int) -> None:
        """The slot has taken in `count` more tokens."""
        ...

    def drawn(self, result: RowResult) -> None:
        """A token was drawn; the feed decides whether it becomes due."""
        ...

    def wants_image(self) -> bool:
        """Whether the slot is to be copied out now, between two steps."""
        ...

    def staged(self, row: bytearray) -> None:
        """The copy that was wanted."""
        ...

    def closed(self, error: Exception | None) -> None:
        """The loop has let go of the slot; called exactly once.

        `error` is None (nothing was due any more), NotFinite (this row alone went bad) or what the
        step raised.
        """
        ...


class NotFinite(Exception):
    """The row's activations are not finite."""


@dataclass(slots=True, eq=False)
class _Member:
    """A feed and its rows in steps on their way."""

    feed: Feed
    flying: int = 0
    error: Exception | None = None  #: what ended it; nothing more is told, its rows come back first


@dataclass(slots=True, eq=False)
class _Flight:
    """A step on its way."""

    planned: scheduler.Planned
    members: list[_Member]  #: one per row
    began: float
    repeats: bool  #: whether every row follows and draws, so that the step may be given again
    ticket: object = None
    error: Exception | None = None  #: why it could not be submitted


class StepLoop:
    """Steps all feeds of one guest together."""

    def __init__(
        self, guest: Guest, engine: Engine, budget: int, clock: Clock, meter: Meter
    ) -> None:
        self._guest = guest
        self._engine = engine
        # every decode row must fit into one step, or a row could wait for ever
        self._budget = max(min(budget, guest.step_tokens), guest.slots)
        self._clock = clock
        self._meter = meter
        self._members: list[_Member] = []
        self._flights: deque[_Flight] = deque()
        self._wake = asyncio.Event()
        self._turn = 0
        self._ended = 0.0  #: when the last step came back

    def add(self, feed: Feed) -> None:
        """Let a feed take part from the next step on."""
        self._members.append(_Member(feed))
        self._wake.set()

    @property
    def feeds(self) -> int:
        """How many feeds take part."""
        return len(self._members)

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            if not self._members:
                self._wake.clear()
                await self._wake.wait()
            await self.step()

    async def step(self) -> None:
        """Hand over what can be, then take the oldest step back and tell its feeds."""
        fresh = self._launch()
        if not self._flights:
            return
        flight = self._flights.popleft()
        try:
            results = await self._engine.run(self._exchange, fresh, flight)
        except Exception as error:  # whatever the guest raises belongs to the rows of this step
            self._broken(flight, error)
            return
        now = self._clock.monotonic()
        self._meter.observe("step_seconds", now - max(flight.began, self._ended))
        self._meter.observe("step_rows", float(len(flight.members)))
        self._ended = now
        self._commit(flight, results)
        for member in flight.members:
            if not member.flying and member.error is None and member.feed.wants_image():
                await self._stage(member.feed)

    def _exchange(self, fresh: Sequence[_Flight], oldest: _Flight) -> Sequence[RowResult]:
        """On the engine thread: begin new steps, then wait for the oldest."""
        for flight in fresh:
            try:
                flight.ticket = self._guest.submit(flight.planned.plan)
            except Exception as error:  # told when it is this step's turn
                flight.error = error
        if oldest.error is not None:
            raise oldest.error
        return self._guest.collect(oldest.ticket)

    async def _stage(self, feed: Feed) -> None:
        """Copy a slot at its step boundary; what is done with the copy happens beside the loop."""
        row = bytearray(self._guest.layout.row_bytes)
        await self._engine.run(self._guest.save, feed.slot, memoryview(row))
        feed.staged(row)

    def _launch(self) -> list[_Flight]:
        """Plan as many steps as may be on their way at once."""
        fresh: list[_Flight] = []
        while len(self._flights) < self._guest.steps_ahead:
            flight = self._again() or self._planned()
            if flight is None:
                break
            self._flights.append(flight)
            fresh.append(flight)
        return fresh

    def _again(self) -> _Flight | None:
        """The newest step on its way once more, if all that take part go on as in it."""
        if not self._flights:
            return None
        newest = self._flights[-1]
        members = newest.members
        if not newest.repeats or len(members) != len(self._members):
            return None
        for member in members:
            if member.error is not None or member.feed.due(1) is not FOLLOWING:
                return None
        for member in members:
            member.flying += 1
            member.feed.launched(1, draws=True)
        planned = scheduler.repeated(newest.planned)
        return _Flight(planned, members, self._clock.monotonic(), repeats=True)

    def _planned(self) -> _Flight | None:
        members, works = self._gather()
        if not works:
            return None
        planned = scheduler.plan(works, self._budget, self._turn)
        self._turn += 1
        riders = [members[work] for work in planned.works]
        rows = planned.plan.rows
        for member, row in zip(riders, rows, strict=True):
            member.flying += 1
            member.feed.launched(len(row.tokens), draws=row.draw is not None)
        repeats = all(row.follows and row.draw is not None for row in rows)
        return _Flight(planned, riders, self._clock.monotonic(), repeats=repeats)

    def _gather(self) -> tuple[list[_Member], list[scheduler.Work]]:
        members: list[_Member] = []
        works: list[scheduler.Work] = []
        finished: list[_Member] = []
        for member in self._members:
            if member.error is not None:
                continue
            feed = member.feed
            gap = feed.due(self._budget)
            if gap:
                members.append(member)
                closes = feed.closes(len(gap))
                draw = feed.draw() if closes else None
                works.append(scheduler.Work(feed.slot, gap, closes, draw, feed.stops()))
            elif not member.flying:
                finished.append(member)
        for member in finished:
            self._close(member)
        return members, works

    def _commit(self, flight: _Flight, results: Sequence[RowResult]) -> None:
        rows = flight.planned.plan.rows
        failed = False
        for member, row, result in zip(flight.members, rows, results, strict=True):
            member.flying -= 1
            if member.error is not None:
                failed = True
            elif not result.ran:
                member.feed.passed_over()
            elif not result.finite:
                member.error = NotFinite()
                failed = True
            else:
                member.feed.absorbed(len(row.tokens))
                if row.draw is not None:
                    member.feed.drawn(result)
        if failed:
            self._close_failed(flight)

    def _broken(self, flight: _Flight, error: Exception) -> None:
        for member in flight.members:
            member.flying -= 1
            member.error = member.error or error
        self._close_failed(flight)

    def _close_failed(self, flight: _Flight) -> None:
        for member in flight.members:
            if member.error is not None and not member.flying:
                self._close(member)

    def _close(self, member: _Member) -> None:
        self._members.remove(member)
        member.feed.closed(member.error)
