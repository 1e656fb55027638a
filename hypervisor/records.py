"""The immutable rows of the catalog, as the core sees them.

Times are microseconds since 1970 (UTC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statevisor.hypervisor.vocab import FinishReason, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRecord:
    """One actor as committed."""

    id: str  #: "act_…"; never reused
    name: str
    model: str
    segment: int  #: the segment its transcript ends on
    position: int  #: length of the transcript
    base: int = 0  #: first position whose token is known (above 0 for an import)
    head: int  #: seq of the version it stands at
    generation: int  #: grows by one with every committed change
    seed: int
    epoch: int  #: fence: a durable effect with a lower epoch is refused
    pinned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl_s: int | None = None  #: idle seconds after which it is hibernated; None: the policy decides
    parent: str | None = None  #: handle of the version it was forked from
    quarantine: str | None = None  #: reason, if it is quarantined
    drift: bool = False  #: its history was replayed under another build than the one that made it
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """An unbranched run of one actor's journal.

    Its tokens begin at `position`; before that the path goes on in `parent`. `rooted` says that the
    state at `position` does not follow from the journal (a mutation, an import): it begins at the
    image kept there, and no replay may cross it.
    """

    id: int
    actor_id: str
    parent: int | None
    position: int
    rooted: bool
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """An image that is durable: its digest and where it lies."""

    digest: str  #: "blake3:<64 hex>" over the whole safetensors file
    nbytes: int
    slab: int
    offset: int  #: of the extent header, 4 KiB aligned
    length: int  #: of the whole extent, header included, 4 KiB multiple
    layout: str
    weights: str
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """`name@seq`: an immutable position of an actor's history."""

    actor_id: str
    actor: str  #: the actor's present name
    seq: int
    segment: int
    position: int
    op: Op
    parents: tuple[str, ...] = ()  #: handles
    digest: str | None = None  #: of its image, once written
    nbytes: int | None = None
    rule: str | None = None
    rule_version: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    select: Mapping[str, Any] = field(default_factory=dict)
    agent: str | None = None
    reason: str | None = None
    before: str | None = None  #: digest of the state a mutation began from
    drift: bool = False
    build: str | None = None  #: fingerprint of the build that made it
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    hidden: bool = False  #: an anchor made by a fork at a bare position
    created_at: int

    @property
    def handle(self) -> str:
        """`name@seq`."""
        return f"{self.actor}@{self.seq}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One request to an actor and its answer; open until `finish` is set."""

    id: str  #: "turn_…"
    actor_id: str
    segment: int
    start: int  #: position before the prompt
    prompt_tokens: int
    settings: Mapping[str, Any]  #: the request's sampler settings, stop conditions and seed
    position: int  #: committed length of the transcript, so far or at its end
    finish: FinishReason | None = None
    broken: bool = False  #: closed by recovery after a crash: a retry of its key resumes it
    text: str | None = None  #: the answer as the caller saw it, set when it ends
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """Consecutive tokens of one transcript of one kind."""

    position: int
    kind: str  #: "prompt" | "generated"
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """An Idempotency-Key with what it was used for."""

    key: str
    request: str  #: hash of method, path and body
    turn_id: str | None  #: the turn it began, if it began one
    result: Mapping[str, Any] | None  #: None while the turn is open
    created_at: int
