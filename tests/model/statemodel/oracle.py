"""What an actor's state must be: a history of events, and a guest that takes one at a time.

It shares the toy guest and the sampler's settings with the hypervisor, and no line of its code: a
history here is a chain of single tokens and mutations, and a state is what one slot of a fresh
guest holds after it was fed that chain one token at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.plan import Row, RowResult, StepPlan
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import Draw, SamplerSettings

ROW_BYTES = 80
EMPTY = bytes(ROW_BYTES)
BAD = (-1).to_bytes(8, "little", signed=True)


@dataclass(eq=False, slots=True)
class Event:
    """One event of a history; its state is `row` with `pending` known but not yet absorbed."""

    kind: str  #: empty | token | branch | rule | import | known (a token that an import brought)
    parent: Event | None
    position: int
    base: int  #: first position whose token is known
    row: bytes
    pending: int | None
    owner: Any  #: the actor on whose journal it lies
    token: int | None = None
    generated: bool = False
    versions: list[Any] = field(default_factory=list)

    def back(self) -> Iterator[Event]:
        """This event and all before it, newest first."""
        here: Event | None = self
        while here is not None:
            yield here
            here = here.parent

    @property
    def poisoned(self) -> bool:
        return self.row[:8] == BAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a turn was asked to generate."""

    max_tokens: int
    settings: SamplerSettings
    seed: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a turn that nobody disturbs gives."""

    tokens: tuple[int, ...]
    text: str
    finish: str  #: stop | length | error


class Oracle:
    """One slot of one guest; every token goes through it alone."""

    def __init__(self) -> None:
        self._guest = ToyGuest(slots=1)

    def absorb(self, row: bytes, token: int) -> bytes:
        """The row after one more token."""
        self._guest.load(1, memoryview(row))
        self._step(token, None)
        return self._saved()

    def draw(self, row: bytes, token: int, draw: Draw) -> RowResult:
        """What is drawn after one more token."""
        self._guest.load(1, memoryview(row))
        return self._step(token, draw)

    def mutate(self, mutation: Mutation, rows: Sequence[bytes]) -> bytes:
        """The row that a rule makes. Raises: InvalidRequest."""
        return bytes(self._guest.mutate(mutation, [memoryview(row) for row in rows]))

    def _step(self, token: int, draw: Draw | None) -> RowResult:
        (result,) = self._guest.step(StepPlan(rows=(Row(slot=1, tokens=(token,), draw=draw),)))
        return result

    def _saved(self) -> bytes:
        row = bytearray(ROW_BYTES)
        self._guest.save(1, memoryview(row))
        return bytes(row)

    # -- histories -------------------------------------------------------------------------------
    def say(
        self, here: Event, tokens: Sequence[int], owner: Any, *, generated: bool = False
    ) -> Event:
        """The history after more tokens."""
        for token in tokens:
            row = here.row if here.pending is None else self.absorb(here.row, here.pending)
            here = Event(
                kind="token",
                parent=here,
                position=here.position + 1,
                base=here.base,
                row=row,
                pending=token,
                owner=owner,
                token=token,
                generated=generated,
            )
        return here

    def answer(self, here: Event, ask: Ask) -> Answer:
        """What a turn generates after a history, if it is left alone."""
        assert here.pending is not None
        row, pending, position = here.row, here.pending, here.position
        counted = _tail(here)
        tokens: list[int] = []
        data = b""
        while len(tokens) < ask.max_tokens:
            bias = _bias(counted, ask.settings, position)
            draw = Draw(seed=ask.seed, position=position, settings=ask.settings, bias=bias)
            result = self.draw(row, pending, draw)
            if not result.finite:
                return Answer(tuple(tokens), data.decode(errors="replace"), "error")
            assert result.token is not None
            row, pending = self.absorb(row, pending), result.token
            tokens.append(pending)
            counted.append((pending, position))
            position += 1
            if pending in ask.stop_ids:
                return Answer(tuple(tokens), data.decode(errors="replace"), "stop")
            data += bytes([pending]) if pending < 256 else b""
            cut = _cut(data.decode(errors="replace"), ask.stop)
            if cut is not None:
                return Answer(tuple(tokens), cut, "stop")
        return Answer(tuple(tokens), data.decode(errors="replace"), "length")


def empty(owner: Any) -> Event:
    """The history of an actor to which nothing was said."""
    return Event("empty", None, 0, 0, EMPTY, None, owner)


def branch(origin: Event, owner: Any) -> Event:
    """A history that goes another way from here on; the state is the same."""
    return Event("branch", origin, origin.position, origin.base, origin.row, origin.pending, owner)


def transcript(here: Event) -> list[tuple[int, bool]]:
    """The known tokens of a history and whether each was generated."""
    found = [(one.token, one.generated) for one in here.back() if one.token is not None]
    return found[::-1]


def before(here: Event, absorbed: int) -> Event:
    """The last event whose state has taken in so many tokens and whose next one is pending."""
    for one in here.back():
        if max(one.position - 1, 0) <= absorbed:
            return one
    raise AssertionError(f"nothing in this history has absorbed {absorbed} tokens")


def _tail(here: Event) -> list[tuple[int, int]]:
    """The generated tokens since the last token of a prompt, with their places."""
    found: list[tuple[int, int]] = []
    for one in here.back():
        if one.token is None:
            continue
        if not one.generated:
            break
        found.append((one.token, one.position - 1))
    return found[::-1]


def _bias(
    counted: Sequence[tuple[int, int]], settings: SamplerSettings, position: int
) -> tuple[tuple[int, float], ...]:
    """Decision 0003, worked out anew for every token."""
    if settings.presence_penalty == 0 and settings.frequency_penalty == 0:
        return ()
    decay = settings.penalty_decay
    bias = []
    for token in sorted({token for token, _ in counted}):
        places = [place for one, place in counted if one == token]
        count = 0.0
        for last, place in zip([places[0], *places], places, strict=False):
            count = count * decay ** (place - last) + 1.0
        aged = count * decay ** (position - places[-1])
        bias.append((token, settings.presence_penalty + settings.frequency_penalty * aged))
    return tuple(bias)


def _cut(text: str, stops: Sequence[str]) -> str | None:
    """The text before a stop string that its last character has completed, if one is there."""
    ends = [stop for stop in stops if stop and text.endswith(stop)]
    return text[: len(text) - max(map(len, ends))] if ends else None
