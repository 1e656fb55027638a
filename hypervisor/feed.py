"""What a step loop steps: one actor's stream of tokens into its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from statevisor.hypervisor.plan import RowResult
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

    def last(self) -> int | None:
        """Position of the last draw, where that is known before."""
        ...

    def launched(self, count: int, *, draws: int) -> None:
        """The next `count` due tokens and so many draws are on their way."""
        ...

    def landed(self, count: int, drawn: Sequence[RowResult], passed_over: int) -> None:
        """Plans are back: the slot has taken in `count` more tokens, and these were drawn; the feed
        decides whether the last of them becomes due.

        passed_over: how often its row was not run, since what it was to follow has ended the feed.
        """
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
