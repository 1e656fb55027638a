"""One step as values: what the scheduler asks of a guest and what comes back.

A row may follow: its only token is `DRAWN`, the one that the same slot's row of the step before
has drawn, whatever that was. So the next step can be handed over before the last one's tokens are
known. A row that follows is not run, and its slot not touched, where there is nothing to follow:
the row before drew one of its `stops`, was not finite, or was not run itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statevisor.hypervisor.sampling import Draw

#: Stands for the token that the slot's row drew in the step before.
DRAWN = -1
#: Most `stops` of a row that another may follow.
MOST_STOPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One actor's share of a step: feed `tokens` to `slot` in order, then perhaps draw one."""

    slot: int  #: 1..slots; slot 0 is the padding row
    tokens: tuple[int, ...]  #: at least one; or `(DRAWN,)`
    draw: Draw | None = None  #: None while the actor's gap stays open or nothing is to be sampled
    stops: frozenset[int] = frozenset()  #: drawn ids that no row follows

    @property
    def follows(self) -> bool:
        """Whether its token is the one drawn in the step before."""
        return self.tokens == FOLLOWING


FOLLOWING = (DRAWN,)  #: the tokens of a row that follows


def _moved(row: Row, offset: int) -> Row:
    if row.draw is None:
        return row
    return replace(row, draw=replace(row.draw, position=row.draw.position + offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Rows of one batched forward pass; every slot at most once."""

    rows: tuple[Row, ...]
    #: Added to the position of every draw. So a step that goes on exactly as the one before is the
    #: same rows, and who knows them needs not look at them again.
    offset: int = 0

    def resolved(self) -> StepPlan:
        """The same plan with the offset put into its rows."""
        if not self.offset:
            return self
        return StepPlan(rows=tuple(_moved(row, self.offset) for row in self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log probabilities of the raw distribution (before penalties, temperature and cuts)."""

    chosen: float
    top: tuple[tuple[int, float], ...]  #: best first, ties to the lowest id


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What a row gave."""

    token: int | None = None  #: the drawn token, if one was asked for
    logprobs: Logprobs | None = None
    finite: bool = True  #: False: the row's activations are not finite; its state is not to be used
    ran: bool = True  #: False: there was nothing to follow, and nothing was done
