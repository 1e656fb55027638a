"""A feed that absorbs known tokens and draws nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from statevisor.hypervisor.plan import RowResult
from statevisor.hypervisor.sampling import Draw


class Replay:
    """Feeds `tokens` into a slot; `ended` holds the error or None once the loop has let go."""

    def __init__(self, slot: int, tokens: Sequence[int]) -> None:
        self.slot = slot
        self.taken = 0
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._tokens = tokens
        self._next = 0

    def due(self, limit: int) -> Sequence[int]:
        return self._tokens[self._next : self._next + limit]

    def closes(self, count: int) -> bool:
        return self._next + count == len(self._tokens)

    def draw(self) -> Draw | None:
        return None

    def stops(self) -> frozenset[int]:
        return frozenset()

    def last(self) -> int | None:
        return None

    def launched(self, count: int, *, draws: int) -> None:
        self._next += count

    def landed(self, count: int, drawn: Sequence[RowResult], passed_over: int) -> None:
        assert not drawn, "a replay draws nothing"
        assert not passed_over, "a replay follows nothing"
        self.taken += count

    def wants_image(self) -> bool:
        return False

    def staged(self, row: bytearray) -> None:
        raise AssertionError("a replay wants no image")

    def closed(self, error: Exception | None) -> None:
        self.ended.set_result(error)
