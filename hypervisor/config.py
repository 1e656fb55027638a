"""Frozen configuration of the core, one per part, built once by `api/settings.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Durability = Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisorConfig:
    """Limits and policies of one visor."""

    mailbox: int = 32  #: operations that may wait for one actor
    host_bytes: int = 256 << 20  #: budget of the host tier
    host_high: float = 0.95  #: share of the host tier from which on it is spilled in the background
    host_low: float = 0.85  #: share of it that is left then
    slot_wait_s: float = 10.0  #: how long an operation may wait for a slot
    prompt_tokens: int = 1 << 20  #: most tokens in one prompt
    max_tokens: int = 1 << 20  #: most tokens one turn may generate
    fork_count: int = 1024  #: most children of one fork
    step_tokens: int = 512  #: token budget of one step over all rows
    checkpoint_tokens: int = (
        4096  #: tokens after which an idle actor is checkpointed in the background
    )
    actors_in_memory: int = 4_096  #: above this, actors at rest are dropped from the table
    recover_actors: int = 64  #: most actors that a start recovers before anyone asks for them
    recover_tokens: int = 1 << 18  #: most tokens that it replays for them
    durability: Durability = "sync"
    accept_drift: bool = False  #: replay journals of another build; the lineage says so for ever
    idempotency_s: int = 24 * 3600
