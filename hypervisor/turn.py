"""One turn in memory: which tokens are due, what was drawn, when to stop, what text came of it.

A turn is a feed of the step loop. It is told what its row gave and decides by itself; everything
that takes time (the journal, the client) happens outside, through `push`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from statevisor.hypervisor.commands import TokenEvent
from statevisor.hypervisor.goal import Goal
from statevisor.hypervisor.plan import FOLLOWING, MOST_STOPS, Logprobs, RowResult
from statevisor.hypervisor.ports import Tokenizer
from statevisor.hypervisor.sampling import Draw, PenaltyCounts
from statevisor.hypervisor.text import StopMatcher, TextStream
from statevisor.hypervisor.vocab import FinishReason


class Stage(Protocol):
    """What takes images of a state while a turn changes it."""

    def due(self, taken: int) -> bool:
        """Whether an image is due once the turn has absorbed so many tokens."""
        ...

    def keep(self, turn: Turn, taken: int, row: bytearray) -> None:
        """Take the row as it was then."""
        ...


class Turn:
    """The feed of one turn."""

    def __init__(
        self,
        *,
        id: str,
        slot: int,
        goal: Goal,
        gap: Sequence[int],
        position: int,
        counts: PenaltyCounts,
        tokenizer: Tokenizer,
        push: Callable[[Turn, Sequence[TokenEvent]], None],
        now: float = 0.0,
        stage: Stage | None = None,
        committed: int | None = None,
    ) -> None:
        """`position` is where its first token will stand; `committed` how far the transcript is
        durable now, if not up to there."""
        self.id = id
        self.slot = slot
        self.position = position  #: length of the transcript, generated tokens included
        self.start = position  #: position of the first generated token
        self.told_at = now  #: when it began or its last token was told, of the monotonic clock
        self.taken = 0  #: tokens absorbed since the turn began
        self._given = 0  #: and those that steps on their way will have absorbed
        self.generated: list[int] = []
        self.logprobs: list[Logprobs | None] = []  #: if they are wanted; None: told before
        self.finish: FinishReason | None = None
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._goal = goal
        self._tokens = list(gap)  #: known and not absorbed by a step that has come back
        self._next = 0  #: the first of them that no step has been given yet
        self._awaited = 0  #: draws in them
        self._pausing = False  #: an image is wanted once they are back
        # Where the next step hangs on what only the host can work out, it waits for this one.
        self._penalised = goal.settings.penalised
        self._foresees = not (goal.stop or self._penalised or len(goal.stop_ids) > MOST_STOPS)
        self._counts = counts
        self._tokenizer = tokenizer
        self._text = TextStream()
        self._stops = StopMatcher(goal.stop)
        self._pieces: list[str] = []
        self._push = push
        self._stage = stage
        self._cancelled = False
        self._committed = position if committed is None else committed
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []

    @property
    def committed(self) -> int:
        """How far the transcript is durable."""
        return self._committed

    @committed.setter
    def committed(self, position: int) -> None:
        self._committed = position
        if self._waiting:
            self._tell(position)

    async def reached(self, position: int) -> bool:
        """Wait until the transcript is durable up to a position; False if it never will be."""
        if position <= self._committed or self.ended.done():
            return position <= self._committed
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, waiting))
        return await waiting

    def _tell(self, position: int) -> None:
        for wanted, waiting in self._waiting:
            if wanted <= position and not waiting.done():
                waiting.set_result(True)
        self._waiting = [pair for pair in self._waiting if not pair[1].done()]

    def settled(self) -> None:
        """Nothing more will be committed: whoever waits for more is told."""
        for _, waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(False)

    @property
    def text(self) -> str:
        """The answer so far, cut at a stop string."""
        return "".join(self._pieces)

    def replayed(self, tokens: Sequence[int]) -> list[TokenEvent]:
        """Take tokens that an earlier, broken attempt at this turn has committed already."""
        events = self._take(tokens, [None] * len(tokens)) if tokens else []
        self.committed = self.position
        return events

    def cancel(self) -> None:
        """End the turn after what is on its way."""
        self._cancelled = True

    # -- the feed --------------------------------------------------------------------------------
    def due(self, limit: int) -> Sequence[int]:
        if self.finish is not None or self._cancelled:
            return ()
        if self._given > self.taken and self._stage is not None:
            # an image of what is on its way comes before the next plan
            self._pausing = self._pausing or self._stage.due(self._given)
            if self._pausing:
                return ()
        if self._awaited:
            more = len(self.generated) + self._awaited < self._goal.max_tokens
            return FOLLOWING if more and self._foresees else ()
        # where nothing is drawn the last token stays pending, as after every turn
        stop = len(self._tokens) - (1 if self._goal.max_tokens == 0 else 0)
        return self._tokens[self._next : min(self._next + limit, stop)]

    def closes(self, count: int) -> bool:
        if self._awaited:
            return True
        return self._goal.max_tokens > 0 and self._next + count == len(self._tokens)

    def draw(self) -> Draw | None:
        position = self.position + self._awaited
        return Draw(
            seed=self._goal.seed,
            position=position,
            settings=self._goal.settings,
            bias=self._counts.bias(position),
        )

    def stops(self) -> frozenset[int]:
        return self._goal.stop_ids if self._foresees else frozenset()

    def last(self) -> int | None:
        return self.start + self._goal.max_tokens - 1 if self._goal.max_tokens else None

    def launched(self, count: int, *, draws: int) -> None:
        if not self._awaited:
            self._next += count
        self._given += count
        self._awaited += draws

    def landed(self, count: int, drawn: Sequence[RowResult], passed_over: int) -> None:
        self.taken += count
        self._given -= passed_over
        self._awaited -= passed_over
        if drawn:
            self._awaited -= len(drawn)
            tokens = [result.token for result in drawn if result.token is not None]
            # where a step with the last is on its way already, it is not due any more
            self._tokens, self._next = tokens[-1:], 1 if self._awaited else 0
            self._push(self, self._take(tokens, [result.logprobs for result in drawn]))
        assert not passed_over or self.finish, "only a token that ends the turn is not followed"

    def wants_image(self) -> bool:
        if self._stage is None or self._given > self.taken or self.finish is not None:
            return False
        if self._next >= len(self._tokens):
            return False
        wanted = self._pausing or self._stage.due(self.taken)
        self._pausing = False
        return wanted

    def staged(self, row: bytearray) -> None:
        assert self._stage is not None
        self._stage.keep(self, self.taken, row)

    def closed(self, error: Exception | None) -> None:
        if self.finish is None:
            self.finish = FinishReason.ERROR if error else self._quiet_end()
            self._pieces.append(self._rest())
        self.ended.set_result(error)

    # -- what a token means ----------------------------------------------------------------------
    def _quiet_end(self) -> FinishReason:
        return FinishReason.CANCELLED if self._cancelled else FinishReason.STOP

    def _take(self, tokens: Sequence[int], logprobs: Sequence[Logprobs | None]) -> list[TokenEvent]:
        """Tokens that follow each other; only the last can be the end of a turn."""
        index, place = len(self.generated), self.position
        texts = self._say(tokens)
        self.generated += tokens
        self.position += len(tokens)
        if self._penalised:
            self._counts.extend(tokens, place)
        if self._goal.settings.logprobs is not None:
            self.logprobs += logprobs
        self.finish = self._decide(tokens[-1])
        if self.finish is not None:
            texts[-1] += self._rest()
        self._pieces += texts
        return list(map(TokenEvent, count(index), count(place), tokens, texts, logprobs))

    def _say(self, tokens: Sequence[int]) -> list[str]:
        feed, spell, stop_ids = self._text.feed, self._tokenizer.token_bytes, self._goal.stop_ids
        texts = ["" if token in stop_ids else feed(spell(token)) for token in tokens]
        return list(map(self._stops.feed, texts)) if self._goal.stop else texts

    def _rest(self) -> str:
        if self._stops.stopped:
            return ""
        return self._stops.feed(self._text.flush()) + self._stops.flush()

    def _decide(self, token: int) -> FinishReason | None:
        if token in self._goal.stop_ids or self._stops.stopped:
            return FinishReason.STOP
        if len(self.generated) >= self._goal.max_tokens:
            return FinishReason.LENGTH
        # what is on its way is part of the transcript: the end is behind it
        return FinishReason.CANCELLED if self._cancelled and not self._awaited else None
