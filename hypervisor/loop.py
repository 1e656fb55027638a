"""The step loop of one guest: plan, step, commit, again.

The loop knows nothing of turns, databases or clients: it asks every feed what is due, runs one step
and tells each feed what came of its row. What a feed does then (journal, reply, stop) happens
beside the loop, never in it.

Where the guest's steps run by themselves, the next step is planned and handed over while one runs,
and results are read one step late. A feed whose next token is not known yet says so (`FOLLOWING`),
and the guest puts it in; whether its row runs at all is then the guest's to see. A feed that cannot
foresee its next step sits one out. With one step at a time all this is the plain loop. Where all
rows go on as they are and the host is slower than the guest, a step is given several times at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from statevisor.hypervisor import scheduler
from statevisor.hypervisor.budget import Budget
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.feed import Feed, NotFinite
from statevisor.hypervisor.pace import Pace
from statevisor.hypervisor.plan import FOLLOWING, RowResult
from statevisor.hypervisor.ports import Clock, Guest, Meter


@dataclass(slots=True, eq=False)
class _Member:
    """A feed and its rows in plans on their way."""

    feed: Feed
    flying: int = 0
    copying: asyncio.Task[None] | None = None  #: of its slot; it takes part again behind it
    error: Exception | None = None  #: what ended it; nothing more is told, its rows come back first


@dataclass(slots=True, eq=False)
class _Flight:
    """A plan on its way."""

    planned: scheduler.Planned
    members: list[_Member]  #: one per row
    began: float
    repeats: bool  #: whether every row follows and draws, so that the step may be given again
    decoding: int  #: rows that had one token to absorb
    ticket: object = None
    error: Exception | None = None  #: why it could not be submitted
    waited: float | None = None  #: seconds for its results; None if they were there before


class StepLoop:
    """Steps all feeds of one guest together."""

    def __init__(
        self, guest: Guest, engine: Engine, budget: int, clock: Clock, meter: Meter
    ) -> None:
        self._guest = guest
        self._engine = engine
        # every decode row must fit into one step, or a row could wait for ever
        self._budget = Budget(max(min(budget, guest.step_tokens), guest.slots))
        self._clock = clock
        self._meter = meter
        self._members: list[_Member] = []
        self._flights: deque[_Flight] = deque()
        self._wake = asyncio.Event()
        self._pace = Pace()
        self._turn = 0
        self._ended = 0.0  #: when the last plan came back

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
        try:
            while True:
                self._wake.clear()
                if not await self.step():
                    await self._wake.wait()
        finally:
            for member in self._members:
                if member.copying is not None:
                    member.copying.cancel()

    async def step(self) -> bool:
        """Hand over what can be, then take the oldest plan back and tell its feeds.

        Returns whether there was anything to do.
        """
        fresh = self._launch()
        if not self._flights:
            return False
        flight = self._flights.popleft()
        try:
            results = await self._engine.run(self._exchange, fresh, flight)
        except Exception as error:  # whatever the guest raises belongs to the rows of this step
            self._broken(flight, error)
            return True
        self._measure(flight)
        self._commit(flight, results)
        for member in flight.members:
            if not member.flying and member.error is None and member.feed.wants_image():
                member.copying = asyncio.create_task(self._copy(member))
        return True

    def _exchange(self, fresh: Sequence[_Flight], oldest: _Flight) -> Sequence[Sequence[RowResult]]:
        """On the engine thread: begin new plans, then wait for the oldest."""
        for flight in fresh:
            try:
                flight.ticket = self._guest.submit(flight.planned.plan)
            except Exception as error:  # told when it is this plan's turn
                flight.error = error
        if oldest.error is not None:
            raise oldest.error
        waits, began = self._guest.waits(oldest.ticket), self._clock.monotonic()
        results = self._guest.collect(oldest.ticket)
        oldest.waited = self._clock.monotonic() - began if waits else None
        return results

    def _measure(self, flight: _Flight) -> None:
        now, times = self._clock.monotonic(), flight.planned.plan.times
        took = now - max(flight.began, self._ended)
        for _ in range(times):
            self._meter.observe("step_seconds", took / times)
            self._meter.observe("step_rows", float(len(flight.members)))
        tokens = flight.decoding if flight.repeats else _tokens(flight)
        self._budget.took(flight.decoding, tokens - flight.decoding, took / times)
        if flight.repeats and self._flights:
            if flight.waited is None:
                self._pace.late()
            else:
                self._pace.early(now - self._ended - flight.waited, now - self._ended)
        self._ended = now

    async def _copy(self, member: _Member) -> None:
        """Copy a slot at its step boundary, while the others go on."""
        row = bytearray(self._guest.layout.row_bytes)
        try:
            await self._engine.beside(self._guest.save, member.feed.slot, memoryview(row))
        except Exception as error:  # whatever the guest raises belongs to this row
            member.error = error
            self._close(member)
        else:
            member.feed.staged(row)
        finally:
            member.copying = None
            self._wake.set()

    def _launch(self) -> list[_Flight]:
        """Make as many plans as may be on their way at once."""
        fresh: list[_Flight] = []
        while len(self._flights) < self._guest.steps_ahead:
            flight = self._again() or self._planned()
            if flight is None:
                break
            self._flights.append(flight)
            fresh.append(flight)
        return fresh

    def _again(self) -> _Flight | None:
        """The newest plan on its way once more, if all that take part go on as in it."""
        if not self._flights:
            return None
        newest = self._flights[-1]
        members = newest.members
        if not newest.repeats or len(members) != len(self._members):
            return None
        for member in members:
            if member.error is not None or member.feed.due(1) is not FOLLOWING:
                return None
        times = self._pace.times
        for member in members:
            member.flying += 1
            member.feed.launched(times, draws=times)
        planned = scheduler.repeated(newest.planned, times)
        return _Flight(planned, members, self._clock.monotonic(), True, len(members))

    def _planned(self) -> _Flight | None:
        members, works = self._gather()
        if not works:
            return None
        decoding = sum(len(work.gap) == 1 for work in works)
        planned = scheduler.plan(works, self._budget.tokens(decoding), self._turn)
        self._turn += 1
        riders = [members[work] for work in planned.works]
        rows = planned.plan.rows
        repeats = all(row.follows and row.draw is not None for row in rows)
        times = self._pace.times if repeats else 1
        planned = replace(planned, plan=replace(planned.plan, times=times))
        for member, row in zip(riders, rows, strict=True):
            member.flying += 1
            member.feed.launched(times * len(row.tokens), draws=0 if row.draw is None else times)
        return _Flight(planned, riders, self._clock.monotonic(), repeats, decoding)

    def _gather(self) -> tuple[list[_Member], list[scheduler.Work]]:
        members: list[_Member] = []
        works: list[scheduler.Work] = []
        finished: list[_Member] = []
        for member in self._members:
            if member.error is not None or member.copying is not None:
                continue
            feed = member.feed
            gap = feed.due(self._budget.most)
            if gap:
                members.append(member)
                closes = feed.closes(len(gap))
                draw = feed.draw() if closes else None
                works.append(
                    scheduler.Work(feed.slot, gap, closes, draw, feed.stops(), feed.last())
                )
            elif not member.flying:
                finished.append(member)
        for member in finished:
            self._close(member)
        return members, works

    def _commit(self, flight: _Flight, results: Sequence[Sequence[RowResult]]) -> None:
        rows = flight.planned.plan.rows
        failed = False
        for member, row, *found in zip(flight.members, rows, *results, strict=True):
            member.flying -= 1
            if member.error is not None:
                failed = True
                continue
            good = found if _good(found[-1]) else list(takewhile(_good, found))
            drawn = good if row.draw is not None else ()
            rest = found[len(good) :]
            if rest and rest[0].ran:
                member.feed.landed(len(row.tokens) * len(good), drawn, 0)
                member.error = NotFinite()
                failed = True
            else:
                member.feed.landed(len(row.tokens) * len(good), drawn, len(rest))
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


def _tokens(flight: _Flight) -> int:
    return sum(len(row.tokens) for row in flight.planned.plan.rows)


def _good(result: RowResult) -> bool:
    # what follows a row that was not run, or is not finite, is not run either
    return result.ran and result.finite
