"""Closing turns in the journal, also when the disk had no room for that at first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.records import ActorRecord
from statevisor.hypervisor.vocab import FinishReason


class Endings:
    """Ends of turns; one that could not be written is written before the actor's next turn."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._left: dict[str, Callable[[], Awaitable[ActorRecord]]] = {}

    async def end(
        self,
        actor: Actor,
        turn_id: str,
        *,
        finish: FinishReason,
        position: int,
        text: str = "",
        result: Mapping[str, Any] | None = None,
    ) -> None:
        """Close an actor's turn at a committed position. Raises: Unavailable (it is left)."""
        end = partial(
            self._catalog.end_turn,
            turn_id,
            finish=finish,
            position=position,
            text=text,
            result=result,
            guard=Guard(epoch=actor.record.epoch),
        )
        try:
            actor.record = await end()
        except Unavailable:
            self._left[actor.id] = end
            actor.record = replace(actor.record, position=position)
            raise

    async def settle(self, actor: Actor) -> None:
        """Close the turn before, if it was left. Raises: Unavailable."""
        end = self._left.pop(actor.id, None)
        if end is not None:
            try:
                actor.record = await end()
            except Unavailable:
                self._left[actor.id] = end
                raise
