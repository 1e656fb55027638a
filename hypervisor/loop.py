"""The step loop of one guest: plan, step, commit, again.

The loop knows nothing of turns, databases or clients: it asks every feed what is due, runs one step
and tells each feed what came of its row. What a feed does then (journal, reply, stop) happens
beside the loop, never in it.

Where the guest's steps run by themselves, the next step is planned and handed over while one runs,
and results are read one step late. A feed whose next token is not known yet says so (`FOLLOWING`),
and the guest puts it in; whether its row runs at all is then the guest's to see. A feed that cannot
foresee its next step sits one out. With one step at a time all this is the plain loop. Where all
rows go on as they are the step is given again without the loop (`runway.py`), until they do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from statevisor.hypervisor import scheduler
from statevisor.hypervisor.budget import Budget
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.feed import Feed, NotFinite
from statevisor.hypervisor.plan import FOLLOWING, MORE_AHEAD, Row, RowResult
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.runway import Flight, Landing, Runway


@dataclass(slots=True, eq=False)
class _Member:
    """A feed and its rows in plans on their way."""

    feed: Feed
    flying: int = 0
    landed: bool = False  #: since it was asked last whether it wants an image
    copying: asyncio.Task[None] | None = None  #: of its slot; it takes part again behind it
    error: Exception | None = None  #: what ended it; nothing more is told, its rows come back first


@dataclass(slots=True, eq=False)
class _Flight(Flight):
    """A plan on its way."""

    members: list[_Member] = field(default_factory=list)  #: one per row
    began: float = 0.0
    decoding: int = 0  #: rows that had one token to absorb
    tokens: int = 0  #: of all rows
    known: int = 1  #: how often it was given, as far as the feeds have been told


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
        self._wake = asyncio.Event()
        self._runway: Runway[_Flight] = Runway(guest, engine, clock, self._wake.set)
        self._newest: _Flight | None = None  #: while it is given again by itself
        self._turn = 0
        self._told = 0.0  #: when the last plan was taken back
        self._read = 0.0  #: when it was read

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
                self._hear(self._runway.take())
                self._launch()
                await self._wake.wait()
        finally:
            self._runway.hold()
            for member in self._members:
                if member.copying is not None:
                    member.copying.cancel()

    # -- what comes back -------------------------------------------------------------------------
    def _hear(self, landed: Sequence[Landing[_Flight]]) -> None:
        """Tell the feeds what came of their rows; times that came together are told together."""
        if not landed:
            return
        self._measure(landed)
        for _, group in groupby(landed, lambda landing: (id(landing.flight), landing.error)):
            landings = list(group)
            flight, error = landings[0].flight, landings[0].error
            self._learn(flight)
            if error is None:
                self._commit(flight, [time for landing in landings for time in landing.results])
            else:
                self._broken(flight, error, sum(landing.times for landing in landings))

    def _measure(self, landed: Sequence[Landing[_Flight]]) -> None:
        # What a caller sees: times that are told together share the time since those before.
        now, times = self._clock.monotonic(), sum(landing.times for landing in landed)
        took = (now - max(landed[0].flight.began, self._told)) / times
        self._told = now
        for landing in landed:
            flight = landing.flight
            if landing.error is None:
                for _ in range(landing.times):
                    self._meter.observe("step_seconds", took)
                    self._meter.observe("step_rows", float(len(flight.members)))
                others = flight.tokens - flight.decoding
                seconds = landing.at - max(flight.began, self._read)
                self._budget.took(flight.decoding, others, seconds / landing.times)
            self._read = landing.at

    def _commit(self, flight: _Flight, times: Sequence[Sequence[RowResult]]) -> None:
        failed = False
        for member, row, *found in zip(flight.members, flight.plan.rows, *times, strict=True):
            member.flying -= len(times)
            member.landed = True
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

    def _broken(self, flight: _Flight, error: Exception, times: int) -> None:
        for member in flight.members:
            member.flying -= times
            member.error = member.error or error
        self._close_failed(flight)

    # -- what goes out ---------------------------------------------------------------------------
    def _launch(self) -> None:
        """Make as many plans as may be on their way at once."""
        while True:
            room = self._guest.steps_ahead
            if self._newest is not None:
                if self._goes_on(self._newest):
                    return
                if self._hold():
                    room += MORE_AHEAD  # what is out already must not keep out who has come
            self._copy_landed()
            if self._runway.plans >= room:
                return
            flight = self._planned()
            if flight is None:
                return
            if flight.most > 1:
                self._newest = flight
            self._runway.give(flight)

    def _goes_on(self, flight: _Flight) -> bool:
        """Whether all that take part go on as in this plan."""
        if not self._runway.going(flight) or len(flight.members) != len(self._members):
            return False
        if flight.given == flight.most:
            return False
        return all(
            member.error is None and member.feed.due(1) is FOLLOWING for member in flight.members
        )

    def _hold(self) -> bool:
        """Give the newest plan no more; returns whether it was given more than once."""
        self._runway.hold()
        flight, self._newest = self._newest, None
        if flight is None:
            return False
        self._learn(flight)
        return flight.given > 1

    def _learn(self, flight: _Flight) -> None:
        """Tell the feeds how often their rows were given by now."""
        more = flight.given - flight.known
        if more:
            flight.known += more
            for member in flight.members:
                member.flying += more
                if member.error is None:
                    member.feed.launched(more, draws=more)

    def _planned(self) -> _Flight | None:
        members, works = self._gather()
        if not works:
            return None
        decoding = sum(len(work.gap) == 1 for work in works)
        planned = scheduler.plan(works, self._budget.tokens(decoding), self._turn)
        self._turn += 1
        riders = [members[work] for work in planned.works]
        rows = planned.plan.rows
        for member, row in zip(riders, rows, strict=True):
            member.flying += 1
            member.feed.launched(len(row.tokens), draws=0 if row.draw is None else 1)
        return _Flight(
            planned.plan,
            most=_most(rows),
            members=riders,
            began=self._clock.monotonic(),
            decoding=decoding,
            tokens=sum(len(row.tokens) for row in rows),
        )

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

    # -- copies and ends -------------------------------------------------------------------------
    def _copy_landed(self) -> None:
        """Begin the copies that are wanted of slots with nothing on its way."""
        for member in self._members:
            if member.landed and not member.flying and member.error is None:
                member.landed = False
                if member.feed.wants_image():
                    member.copying = asyncio.create_task(self._copy(member))

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

    def _close_failed(self, flight: _Flight) -> None:
        self._hold()  # or a row could be given once more behind the last that is known of
        for member in flight.members:
            if member.error is not None and not member.flying:
                self._close(member)

    def _close(self, member: _Member) -> None:
        self._members.remove(member)
        member.feed.closed(member.error)


def _most(rows: Sequence[Row]) -> int:
    """How often a plan of these rows may be given: up to the first that is at its last draw."""
    most = 1 << 62
    for row in rows:
        if not row.follows or row.draw is None:
            return 1
        if row.last is not None:
            most = min(most, row.last - row.draw.position + 1)
    return max(1, most)


def _good(result: RowResult) -> bool:
    # what follows a row that was not run, or is not finite, is not run either
    return result.ran and result.finite
