"""The generated tokens of open turns in memory, so that no read has to search the journal.

Two sides: the writer's thread changes tails inside a group and can take the changes back; readers
on the event loop see a tail only as far as it is committed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from statevisor.hypervisor.catalog_port import JournalEntry
from statevisor.hypervisor.errors import Conflict, StatevisorError


@dataclass(slots=True, kw_only=True, eq=False)
class Tail:
    """What one open turn has generated."""

    turn_id: str
    actor_id: str
    segment: int
    start: int  #: position of its first token
    journal_after: int  #: its groups have higher ids
    tokens: array[int] = field(default_factory=lambda: array("i"))
    folded: int = 0  #: so many of them are in a token run already
    since: int = 0  #: the group that holds the first one not folded; 0: none is waiting
    visible: int = 0  #: so many are committed

    @property
    def end(self) -> int:
        """The position behind its last token, committed or not."""
        return self.start + len(self.tokens)


class Tails:
    """All open turns."""

    def __init__(self) -> None:
        self._open: dict[str, Tail] = {}
        self._undo: list[Callable[[], object]] = []
        self._touched: list[Tail] = []
        self._shown: dict[int, Tail] = {}  # by segment: one turn is open on it at most
        self._ends: dict[str, int] = {}
        self.last_group = 0  #: id of the newest journal row

    # -- the writer's side -----------------------------------------------------------------------
    def get(self, turn_id: str) -> Tail | None:
        """An open turn's tail."""
        return self._open.get(turn_id)

    def all(self) -> Collection[Tail]:
        """Tails of every open turn."""
        return self._open.values()

    def all_ends(self) -> Mapping[str, int]:
        """How far every open turn reaches, in the group that runs now."""
        return {tail.turn_id: tail.end for tail in self._open.values()}

    def open(self, tail: Tail) -> None:
        """A turn begins."""
        self._open[tail.turn_id] = tail
        self._touched.append(tail)
        self._undo.append(partial(self._open.pop, tail.turn_id))

    def close(self, tail: Tail) -> None:
        """A turn ends."""
        del self._open[tail.turn_id]
        self._touched.append(tail)
        self._undo.append(partial(self._open.__setitem__, tail.turn_id, tail))

    def extend(self, entries: Sequence[JournalEntry], group: int) -> list[Tail]:
        """Add one group's tokens to their tails; returns the tails they were added to.

        Raises: Conflict (a turn is not open), StatevisorError (tokens do not follow the last ones).
        """
        before: list[tuple[Tail, int, int, int]] = []
        self._undo.append(partial(_restore, before))
        touched, find = [], self._open.get
        for entry in entries:
            tail = find(entry.turn_id)
            if tail is None:
                raise Conflict(f"turn {entry.turn_id} is not open")
            tokens = tail.tokens
            count = len(tokens)
            if entry.position != tail.start + count or entry.segment != tail.segment:
                raise StatevisorError(
                    f"turn {entry.turn_id} goes on at {tail.end} of segment {tail.segment}, "
                    f"not at {entry.position} of {entry.segment}"
                )
            before.append((tail, count, tail.folded, tail.since))
            touched.append(tail)
            if entry.tokens:
                tokens.extend(entry.tokens)
                tail.since = tail.since or group
        self._touched += touched
        return touched

    def fold(self, tail: Tail) -> None:
        """All tokens of a tail are in token runs now."""
        state = (tail, len(tail.tokens), tail.folded, tail.since)
        self._undo.append(partial(_restore, [state]))
        tail.folded, tail.since = len(tail.tokens), 0

    def next_group(self) -> int:
        """The id of a new journal row."""
        self._undo.append(partial(setattr, self, "last_group", self.last_group))
        self.last_group += 1
        return self.last_group

    def replace(self, tails: Sequence[Tail], last_group: int) -> None:
        """Take these and no others, as read from the database."""
        self._undo.append(partial(setattr, self, "last_group", self.last_group))
        self._undo.append(partial(setattr, self, "_open", self._open))
        self._touched += [*self._open.values(), *tails]
        self._open = {tail.turn_id: tail for tail in tails}
        self.last_group = last_group

    def on_undo(self, step: Callable[[], object]) -> None:
        """Let something else be taken back with the tails."""
        self._undo.append(step)

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back every change since a mark, last first."""
        while len(self._undo) > mark:
            self._undo.pop()()
        if not mark:
            self._touched.clear()

    def publish(self) -> None:
        """Show what is committed; on the event loop, while no group runs."""
        for tail in self._touched:
            if self._open.get(tail.turn_id) is tail:
                tail.visible = len(tail.tokens)
                self._shown[tail.segment] = tail
                self._ends[tail.turn_id] = tail.start + tail.visible
            elif self._shown.get(tail.segment) is tail:
                del self._shown[tail.segment], self._ends[tail.turn_id]
        self._touched.clear()
        self._undo.clear()

    # -- the readers' side -----------------------------------------------------------------------
    def ends(self) -> Mapping[str, int]:
        """How far every open turn is committed, by its id; a copy."""
        return self._ends.copy()

    def seen(self, segment: int) -> tuple[int, array[int]] | None:
        """The committed tokens of the turn open on a segment and where they begin; a copy."""
        tail = self._shown.get(segment)
        return None if tail is None else (tail.start, tail.tokens[: tail.visible])


def _restore(before: Sequence[tuple[Tail, int, int, int]]) -> None:
    for tail, length, folded, since in reversed(before):
        del tail.tokens[length:]
        tail.folded, tail.since = folded, since
