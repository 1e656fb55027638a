"""Steps with rows of several tokens in one of a few sizes, so that each size can be one graph.

Rows of one token come first, as in a decode step, and take its kernels; behind them are the longer
rows. Both kinds are filled up: with token 0 into slot 0, which holds no actor, and with rows
without a token, to the first of which belong the padding tokens, and whose slot is not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from statevisor.guests.batch import batch_of, elements, parts
from statevisor.guests.graphs import fitting_buckets
from statevisor.guests.ops import RaggedBatch

#: Rows of one token; tokens of the longer rows; the longer rows, and one for the padding.
SINGLES = (8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
ROWS = (4, 33, 129, 513)


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """What a step is filled up to."""

    singles: int  #: rows of one token
    tokens: int  #: of the longer rows
    longer: int  #: rows

    @property
    def all_tokens(self) -> int:
        return self.singles + self.tokens

    @property
    def rows(self) -> int:
        return self.singles + self.longer

    def holds(self, singles: int, tokens: int, longer: int) -> bool:
        """Whether it takes so many; with padding tokens there must be a padding row."""
        if singles > self.singles or tokens > self.tokens or longer > self.longer:
            return False
        return bool(self.singles) == bool(singles) and (
            tokens == self.tokens or longer < self.longer
        )


def mixed_sizes(tokens: int, slots: int) -> tuple[Size, ...]:
    """Sizes for steps of so many tokens and slots, the smallest that holds a step first."""
    found = []
    fewest = 0  # rows of one token that a step of this size has
    for singles in (0, *fitting_buckets(slots, SINGLES)):
        for count in fitting_buckets(tokens - fewest, TOKENS) if slots > fewest else ():
            # A longer row has two tokens at least; one row more is for the padding.
            most = min(slots - fewest, count // 2) + 1
            found += [Size(singles, count, min(rows, most)) for rows in fitting_buckets(most, ROWS)]
        fewest = singles + 1
    return tuple(sorted(set(found)))


def size_of(lengths: Sequence[int], sizes: Sequence[Size]) -> Size | None:
    """The first size that holds rows of so many tokens, if one does."""
    singles = lengths.count(1)
    held = singles, sum(lengths) - singles, len(lengths) - singles
    return next((size for size in sizes if size.holds(*held)), None)


class MixedRows:
    """The static inputs of the largest size, of which the others use the beginning."""

    def __init__(self, sizes: Sequence[Size], device: torch.device, *, pinned: bool) -> None:
        """pinned: whether the memory on the host is page-locked."""
        most = max((elements(size.all_tokens, size.rows) for size in sizes), default=0)
        self._buffer = torch.zeros(most, dtype=torch.int64, device=device)
        self._pinned = pinned

    def host(self) -> torch.Tensor:
        """Host memory that a step can be written into."""
        return torch.zeros(self._buffer.shape, dtype=torch.int64, pin_memory=self._pinned)

    def batch(self, size: Size) -> RaggedBatch:
        """A step of this size; views, so what is sent later is seen."""
        # What a graph holds depends on whether there are longer rows, no further.
        return batch_of(self._buffer, size.all_tokens, size.rows, longest=2, singles=size.singles)

    def send(self, host: torch.Tensor, size: Size) -> None:
        """Copy a step that was written for this size."""
        count = elements(size.all_tokens, size.rows)
        self._buffer[:count].copy_(host[:count], non_blocking=True)


def write(host: torch.Tensor, size: Size, longer: Sequence[Sequence[int]]) -> None:
    """The tokens of the longer rows of a step and all padding; slots, and tokens of the others, are
    put in by the step itself, from its table."""
    views: Sequence[NDArray[Any]] = [
        part.numpy() for part in parts(host, size.all_tokens, size.rows)
    ]
    tokens, owners, slots, starts, lasts, firsts = views
    singles, given = size.singles, size.singles + len(longer)
    lengths = np.array([len(row) for row in longer], dtype=np.int64)
    end = singles + int(lengths.sum())
    assert end == size.all_tokens or len(longer) < size.longer, f"no row for padding in {size}"
    starts[:singles] = lasts[:singles] = owners[:singles] = np.arange(singles)
    starts[singles] = singles
    np.cumsum(lengths, out=starts[singles + 1 : given + 1])
    starts[singles + 1 : given + 1] += singles
    starts[given + 1 :] = end
    lasts[singles:given] = starts[singles + 1 : given + 1] - 1
    lasts[given:] = 0
    tokens[:singles] = 0
    tokens[singles:end] = [token for row in longer for token in row]
    tokens[end:] = 0
    owners[singles:end] = np.repeat(np.arange(singles, given), lengths)
    owners[end:] = given
    firsts[:singles] = True
    firsts[singles:] = False
    firsts[starts[singles:given]] = True
    slots[:] = 0
