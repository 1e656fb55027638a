"""Turns that a crash has left open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.ports import Tokenizer
from statevisor.hypervisor.records import TurnRecord
from statevisor.hypervisor.vocab import FinishReason

#: Turns that are closed at the same time.
_TOGETHER = 64


class BrokenTurns:
    """Closes them before anything else is served."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def close(self, tokenizers: Mapping[str, Tokenizer]) -> int:
        """Close the turns that a crash has left open, at their last committed token."""
        turns = await self._catalog.open_turns()
        for at in range(0, len(turns), _TOGETHER):
            part = turns[at : at + _TOGETHER]
            # side by side, so that they share commits
            await asyncio.gather(*(self._close(turn, tokenizers) for turn in part))
        return len(turns)

    async def _close(self, turn: TurnRecord, tokenizers: Mapping[str, Tokenizer]) -> None:
        actor = await self._catalog.actor(turn.actor_id)
        text = ""
        tokenizer = tokenizers.get(actor.model)
        if tokenizer is not None:
            begin = turn.start + turn.prompt_tokens
            runs = await self._catalog.transcript(turn.segment, begin, turn.position)
            tokens = [token for run in runs for token in run.tokens]
            text = b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")
        await self._catalog.end_turn(
            turn.id,
            finish=FinishReason.CANCELLED,
            position=turn.position,
            text=text,
            result=None,
            guard=Guard(epoch=actor.epoch),
            broken=True,
        )
