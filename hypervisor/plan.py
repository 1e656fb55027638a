"""One step as values: what the scheduler asks of a guest and what comes back.

A row may follow: its only token is `DRAWN`, the one that the same slot's row of the step before
has drawn, whatever that was. So the next step can be handed over before the last one's tokens are
known. A row that follows is not run, and its slot not touched, where there is nothing to follow:
the row before drew one of its `stops`, drew at its `last` position or behind it, was not finite, or
was not run itself.

A step whose rows all follow may be given once for several `times`: each follows the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statevisor.hypervisor.sampling import Draw

#: Stands for the token that the slot's row drew in the step before.
DRAWN = -1
#: Most `stops` of a row that another may follow.
MOST_STOPS = 8
#: Most times that a step is given at once.
MOST_TIMES = 8
#: Most plans that are submitted and not collected beyond those that a guest asks for.
MORE_AHEAD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One actor's share of a step: feed `tokens` to `slot` in order, then perhaps draw one."""

    slot: int  #: 1..slots; slot 0 is the padding row
    tokens: tuple[int, ...]  #: at least one; or `(DRAWN,)`
    draw: Draw | None = None  #: None while the actor's gap stays open or nothing is to be sampled
    stops: frozenset[int] = frozenset()  #: drawn ids that no row follows
    last: int | None = None  #: position of a draw that no row follows, nor any behind it

    @property
    def follows(self) -> bool:
        """Whether its token is the one drawn in the step before."""
        return self.tokens == FOLLOWING


FOLLOWING = (DRAWN,)  #: the tokens of a row that follows


def _moved(row: Row, offset: int) -> Row:
    if row.draw is None or not offset:
        return row
    return replace(row, draw=replace(row.draw, position=row.draw.position + offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Rows of one batched forward pass; every slot at most once."""

    rows: tuple[Row, ...]
    #: Added to the position of every draw. So a step that goes on exactly as the one before is the
    #: same rows, and who knows them needs not look at them again.
    offset: int = 0
    #: 1..MOST_TIMES; more than 1 only if every row follows. Draws go one position on each time.
    times: int = 1

    def resolved(self) -> tuple[StepPlan, ...]:
        """The single steps of the plan, with the offset put into their rows."""
        if not self.offset and self.times == 1:
            return (self,)
        offsets = range(self.offset, self.offset + self.times)
        return tuple(StepPlan(rows=tuple(_moved(row, at) for row in self.rows)) for at in offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log probabilities of the raw distribution (before penalties, temperature and cuts)."""

    chosen: float
    top: tuple[tuple[int, float], ...]  #: best first, ties to the lowest id


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What a row gave, one time."""

    token: int | None = None  #: the drawn token, if one was asked for
    logprobs: Logprobs | None = None
    finite: bool = True  #: False: the row's activations are not finite; its state is not to be used
    ran: bool = True  #: False: there was nothing to follow, and nothing was done
