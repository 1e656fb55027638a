"""How many tokens of prompts and replays a step carries while others decode.

A step with a long prompt in it takes longer, and all that decode wait for it. So beside them the
share of longer gaps is what keeps a step within a bound of what the decoding rows took alone. It is
found while it runs, since it depends on machine, model and rows.
"""

from __future__ import annotations

from statistics import median
from typing import Final

#: Of a step with nothing but decoding rows, how many times it may take: above it the share
#: shrinks, below the other it grows. A 99th percentile of twice is the aim.
_MOST, _FEWEST = 1.8, 1.5
#: Tokens of the share at first, and at least.
_FIRST, _LEAST = 64, 16
#: Steps that are judged together, and so many judgements to stay where less has not helped.
_STEPS, _STAY = 4, 50
#: What part of the time must be left for a smaller share to have helped.
_HELPED = 0.9
#: Weight of the newest step in the average.
_NEWEST = 0.1


class Budget:
    """Tokens of the next step."""

    def __init__(self, most: int) -> None:
        self.most: Final = most  #: tokens of a step over all rows
        self._share = _FIRST
        self._alone: float | None = None  #: seconds of a step of decoding rows alone
        self._seconds: list[float] = []  #: of steps with the whole share
        self._larger: tuple[int, float] | None = None  #: the share before this, and its seconds
        self._stay = 0

    def tokens(self, decoding: int) -> int:
        """Tokens of a step with so many decoding rows, theirs included."""
        return min(self.most, decoding + self._share) if decoding else self.most

    def took(self, decoding: int, others: int, seconds: float) -> None:
        """Learn from a step with so many decoding rows and so many tokens of other rows."""
        if decoding and not others:
            before = seconds if self._alone is None else self._alone
            self._alone = before + _NEWEST * (seconds - before)
        elif decoding and self._alone is not None and others >= min(self._share, self.most):
            self._seconds.append(seconds)
            if len(self._seconds) == _STEPS:
                self._judge(median(self._seconds), self._alone)
                self._seconds.clear()

    def _judge(self, seconds: float, alone: float) -> None:
        if self._stay:
            self._stay -= 1
        elif seconds > _MOST * alone:
            if self._larger is not None and seconds > _HELPED * self._larger[1]:
                # such a step takes that long with any share: then with the one that does more
                self._share, self._larger, self._stay = self._larger[0], None, _STAY
            elif self._share > _LEAST:
                self._larger = (self._share, seconds)
                self._share = max(_LEAST, self._share // 2)
        else:
            self._larger = None
            if seconds < _FEWEST * alone:
                self._share = min(self.most, self._share + self._share // 4 + 1)
