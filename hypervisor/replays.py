"""Tokens of the journal on their way into slots, a slice at a time.

In slices, because a history may be long: neither the event loop nor the memory takes it at once.
And because there are replays that somebody waits for and such that nobody has asked for yet: the
latter go on only between two slices, and only while there are none of the former.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statevisor.hypervisor.loop import StepLoop
from statevisor.hypervisor.ports import Clock, Meter
from statevisor.hypervisor.replay import Replay
from statevisor.hypervisor.states import States

#: Tokens of one slice.
ASKED, UNASKED = 16_384, 256


class Yielded(Exception):
    """A replay that nobody has asked for has made room for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Of a replay that nobody has asked for."""

    asked: Callable[[], bool]  #: somebody waits for it now: no patience any more
    gone: Callable[[], bool]  #: its slot is wanted, or the server stops


class Replays:
    """Replays into the slots of one guest."""

    def __init__(self, *, loop: StepLoop, states: States, clock: Clock, meter: Meter) -> None:
        self._loop = loop
        self._states = states
        self._clock = clock
        self._meter = meter
        self._asked = 0  #: replays that somebody waits for
        self._news = asyncio.Event()

    def nudge(self) -> None:
        """Let whoever is patient look anew."""
        self._news.set()

    async def run(
        self,
        slot: int,
        segment: int,
        start: int,
        stop: int,
        *,
        took: Callable[[int], None],
        patience: Patience | None = None,
        known: tuple[int, ...] | None = None,
    ) -> None:
        """Absorb the tokens start..stop of a path; `took` is told of every slice.

        `known` are the path's tokens from the first on, where the journal need not be read.
        Raises: Yielded; NotFinite, or whatever a step of its row raised.
        """
        at = start
        while patience is not None and at < stop and not patience.asked():
            await self._calm(patience)
            if patience.asked():
                break
            tokens = await self._states.tokens(segment, at, min(stop, at + UNASKED))
            at += await self._absorb(slot, tokens, took)
        self._asked += 1
        try:
            while at < stop:
                end = min(stop, at + ASKED)
                tokens = known[at:end] if known else await self._states.tokens(segment, at, end)
                at += await self._absorb(slot, tokens, took)
        finally:
            self._asked -= 1
            self.nudge()

    async def _calm(self, patience: Patience) -> None:
        """Wait until nobody else is waited for. Raises: Yielded."""
        while not patience.asked():
            if patience.gone():
                raise Yielded
            if not self._asked:
                return
            self._news.clear()
            await self._news.wait()

    async def _absorb(self, slot: int, tokens: Sequence[int], took: Callable[[int], None]) -> int:
        replay, began = Replay(slot, tokens), self._clock.monotonic()
        self._loop.add(replay)
        error = await replay.ended
        took(replay.taken)
        self._states.checkpoints.replayed(replay.taken, self._clock.monotonic() - began)
        self._meter.count("replayed_tokens_total", replay.taken)
        if error is not None:
            raise error
        return replay.taken
