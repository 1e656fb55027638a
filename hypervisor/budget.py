"""How many tokens of prompts and replays a step carries while others decode.

A step with a long prompt in it takes longer, and all that decode wait for it. So beside them the
share of longer gaps is what keeps a step within a bound of what the decoding rows took alone. It is
found while it runs, since it depends on machine, model and rows.
"""

from __future__ import annotations

from typing import Final

#: Of a step with nothing but decoding rows, how many times it may take: above it the share
#: shrinks, below the other it grows. A 99th percentile of twice is the aim.
_MOST, _FEWEST = 1.8, 1.5
#: Tokens of the share at first, and at least.
_FIRST, _LEAST = 128, 16
#: Weight of the newest step in the average.
_NEWEST = 0.1


class Budget:
    """Tokens of the next step."""

    def __init__(self, most: int) -> None:
        self.most: Final = most  #: tokens of a step over all rows
        self._share = _FIRST
        self._alone: float | None = None  #: seconds of a step of decoding rows alone

    def tokens(self, decoding: int) -> int:
        """Tokens of a step with so many decoding rows, theirs included."""
        return min(self.most, decoding + self._share) if decoding else self.most

    def took(self, decoding: int, others: int, seconds: float) -> None:
        """Learn from a step with so many decoding rows and so many tokens of other rows."""
        if not decoding:
            return
        if not others:
            before = seconds if self._alone is None else self._alone
            self._alone = before + _NEWEST * (seconds - before)
        elif self._alone is not None:
            if seconds > _MOST * self._alone:
                self._share = max(_LEAST, self._share * 3 // 4)
            elif seconds < _FEWEST * self._alone and others >= self._share:
                self._share = min(self.most, self._share + self._share // 8 + 1)
