"""The tokens of a path, gathered from its segments."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from sqlalchemy import Connection

from statevisor.hypervisor.records import TokenRun
from statevisor.store import runs
from statevisor.store.segments import get, path

Piece: TypeAlias = "tuple[int, str, array[int]]"


def read(
    conn: Connection, segment: int, start: int, stop: int, tail: tuple[int, array[int]] | None
) -> tuple[TokenRun, ...]:
    """Tokens in start..stop; `tail` are those of the turn open on the segment when the read began.

    Neighbours of one kind are one run. Raises: NotFound.
    """
    get(conn, segment)
    pieces: list[Piece] = []
    for step in reversed(path(conn, segment, stop, floor=start)):
        pieces += runs.within(conn, step.id, max(start, step.position), step.top)
    if tail is not None:
        pieces += _beyond(pieces, tail, start, stop)
    return tuple(merged(pieces))


def merged(pieces: Iterable[Piece]) -> Iterator[TokenRun]:
    """Runs as long as they can be, of pieces in order."""
    begin, kind, tokens = 0, "", array("i")
    for at, of, more in pieces:
        if tokens and (of != kind or at != begin + len(tokens)):
            yield TokenRun(position=begin, kind=kind, tokens=tuple(tokens))
            tokens = array("i")
        if not tokens:
            begin, kind = at, of
        tokens.extend(more)
    if tokens:
        yield TokenRun(position=begin, kind=kind, tokens=tuple(tokens))


def _beyond(
    pieces: list[Piece], tail: tuple[int, array[int]], start: int, stop: int
) -> Iterator[Piece]:
    """What of a tail lies behind the tokens at rest."""
    begin, tokens = tail
    low = max(start, begin, pieces[-1][0] + len(pieces[-1][2]) if pieces else start)
    high = min(stop, begin + len(tokens))
    if low < high:
        yield low, "generated", tokens[low - begin : high - begin]
