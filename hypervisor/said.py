"""What an actor has said since it was last spoken to: penalties count it."""

from __future__ import annotations

from collections.abc import Sequence

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.goal import Goal
from statevisor.hypervisor.sampling import PenaltyCounts

#: Tokens of a transcript that are read at a time.
_PIECE = 4096


class Said:
    """Reads it from the journal."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def counts(
        self, actor: Actor, goal: Goal, begin: int, *, prompted: bool
    ) -> PenaltyCounts:
        """Counts of the tokens generated since the last prompt token before `begin`."""
        counts = PenaltyCounts(settings=goal.settings)
        if goal.settings.penalised and goal.max_tokens and not prompted:
            said = await self._said(actor.segment, actor.record.base, begin)
            counts.extend(said, begin - len(said))
        return counts

    async def _said(self, segment: int, base: int, end: int) -> Sequence[int]:
        """The generated tokens since the last prompt token; read from behind, as far as needed."""
        pieces: list[Sequence[int]] = []
        while end > base:
            start = max(base, end - _PIECE)
            for run in reversed(await self._catalog.transcript(segment, start, end)):
                if run.kind != "generated":
                    start = base
                    break
                pieces.append(run.tokens)
            end = start
        return [token for piece in reversed(pieces) for token in piece]
