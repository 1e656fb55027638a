"""The step loop of one guest: plan, step, commit, again.

A feed is one actor's stream of tokens into its slot. The loop knows nothing of turns, databases or
clients: it asks every feed what is due, runs one step and tells each feed what came of its row.
What a feed does then (journal, reply, stop) happens beside the loop, never in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from statevisor.hypervisor import scheduler
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.plan import RowResult
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.sampling import Draw


class Feed(Protocol):
    """One actor's share of the loop; its methods run on the event loop and must not block."""

    slot: int

    def due(self, limit: int) -> Sequence[int]:
        """The next tokens to absorb, at most `limit`; empty: the feed is done."""
        ...

    def closes(self, count: int) -> bool:
        """Whether `count` due tokens are all that is known."""
        ...

    def draw(self) -> Draw | None:
        """The draw to make once all known tokens are absorbed."""
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
        self._feeds: list[Feed] = []
        self._wake = asyncio.Event()
        self._turn = 0

    def add(self, feed: Feed) -> None:
        """Let a feed take part from the next step on."""
        self._feeds.append(feed)
        self._wake.set()

    @property
    def feeds(self) -> int:
        """How many feeds take part."""
        return len(self._feeds)

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            if not self._feeds:
                self._wake.clear()
                await self._wake.wait()
            await self.step()

    async def step(self) -> None:
        """One step over every feed that has something due."""
        feeds, works = self._gather()
        if not works:
            return
        planned = scheduler.plan(works, self._budget, self._turn)
        self._turn += 1
        began = self._clock.monotonic()
        try:
            results = await self._engine.run(self._guest.step, planned.plan)
        except Exception as error:  # whatever the guest raises belongs to the rows of this step
            self._fail([feeds[work] for work in planned.works], error)
            return
        self._meter.observe("step_seconds", self._clock.monotonic() - began)
        self._meter.observe("step_rows", float(len(planned.works)))
        bad: list[Feed] = []
        for progress in scheduler.commit(planned, results):
            feed = feeds[progress.work]
            if not progress.result.finite:
                bad.append(feed)
                continue
            feed.absorbed(progress.absorbed)
            if progress.drew:
                feed.drawn(progress.result)
        self._fail(bad, NotFinite())
        for feed in [feeds[work] for work in planned.works]:
            if feed not in bad and feed.wants_image():
                await self._stage(feed)

    async def _stage(self, feed: Feed) -> None:
        """Copy a slot at its step boundary; what is done with the copy happens beside the loop."""
        row = bytearray(self._guest.layout.row_bytes)
        await self._engine.run(self._guest.save, feed.slot, memoryview(row))
        feed.staged(row)

    def _gather(self) -> tuple[list[Feed], list[scheduler.Work]]:
        feeds: list[Feed] = []
        works: list[scheduler.Work] = []
        finished: list[Feed] = []
        for feed in self._feeds:
            gap = feed.due(self._budget)
            if not gap:
                finished.append(feed)
                continue
            feeds.append(feed)
            closes = feed.closes(len(gap))
            works.append(scheduler.Work(feed.slot, gap, closes, feed.draw() if closes else None))
        for feed in finished:
            self._feeds.remove(feed)
            feed.closed(None)
        return feeds, works

    def _fail(self, feeds: list[Feed], error: Exception) -> None:
        for feed in feeds:
            self._feeds.remove(feed)
            feed.closed(error)
