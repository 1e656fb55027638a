"""Token bytes to text while they arrive: whole characters only, cut at a stop string.

Whatever the cut of the stream into pieces, the pieces that come out join to the same text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """UTF-8 bytes to text; an incomplete character is held back until its bytes are there.

    The text is that of `bytes.decode(errors="replace")` over the whole stream.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = False  #: whether the decoder holds the begin of a character

    def feed(self, data: bytes) -> str:
        """The text that these bytes complete."""
        if not self._held and data.isascii():  # most tokens of most texts, at a tenth of the cost
            return data.decode("ascii")
        text = self._decoder.decode(data)
        self._held = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """End the stream: what is held back will not be completed."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Cuts a stream of text at the first stop string that is completed, wherever it was split.

    Of stop strings completed by the same character the longest counts. Text that may yet become
    part of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._patterns = [_Pattern(stop) for stop in stops if stop]
        self._held = ""
        self.stopped = False  #: once a stop string was completed nothing comes out any more

    def feed(self, text: str) -> str:
        """The text that is certain to stay."""
        if self.stopped or not self._patterns:
            return "" if self.stopped else text
        before = len(self._held)
        self._held += text
        for index, char in enumerate(text, start=before + 1):
            cut = max(pattern.step(char) for pattern in self._patterns)
            if cut:
                self.stopped = True
                return self._release(index - cut)
        return self._release(len(self._held) - max(pattern.seen for pattern in self._patterns))

    def flush(self) -> str:
        """End the stream: what is held back is no stop string."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


class _Pattern:
    """One stop string and how much of it the end of the stream matches (Knuth, Morris, Pratt)."""

    __slots__ = ("_borders", "_stop", "seen")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = [0] * len(stop)  #: of each head: its longest proper head that is its tail
        self.seen = 0
        for index in range(1, len(stop)):
            border = self._borders[index - 1]
            while border and stop[index] != stop[border]:
                border = self._borders[border - 1]
            self._borders[index] = border + (stop[index] == stop[border])

    def step(self, char: str) -> int:
        """Take one character; the length of the stop string if that completes it, else 0."""
        while self.seen and char != self._stop[self.seen]:
            self.seen = self._borders[self.seen - 1]
        self.seen += char == self._stop[self.seen]
        return len(self._stop) if self.seen == len(self._stop) else 0
