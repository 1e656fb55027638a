"""The rules of the catalog that do not depend on where its rows are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from statevisor.hypervisor.catalog_port import Guard, Once
from statevisor.hypervisor.errors import (
    ActorBusy,
    Conflict,
    Fenced,
    GenerationConflict,
    IdempotencyMismatch,
    VersionNotFound,
)
from statevisor.hypervisor.records import (
    ActorRecord,
    OperationRecord,
    SegmentRecord,
    TurnRecord,
    VersionRecord,
)


class Guarded(Protocol):
    """A row that a Guard is held against: what of an actor it must show."""

    @property
    def id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def generation(self) -> int: ...


def check_guard(actor: Guarded, guard: Guard) -> None:
    """Hold a guard against an actor. Raises: Fenced, GenerationConflict."""
    if guard.epoch is not None and guard.epoch < actor.epoch:
        raise Fenced(f"{actor.id} is at epoch {actor.epoch}; this writer has {guard.epoch}")
    if guard.generation is not None and guard.generation != actor.generation:
        raise GenerationConflict(
            f"{actor.id} is at generation {actor.generation}, not {guard.generation}"
        )


class Standing(Protocol):
    """Where an actor stands."""

    @property
    def id(self) -> str: ...
    @property
    def segment(self) -> int: ...
    @property
    def position(self) -> int: ...


def check_start(actor: Standing, turn: TurnRecord, prompt: Sequence[int]) -> None:
    """Refuse a turn that was planned from another place than where the actor stands.

    A turn with a prompt begins where the actor stands; one without may take up an earlier turn,
    whose prompt is in the transcript already. Raises: Conflict.
    """
    begins = turn.start == actor.position if prompt else turn.start <= actor.position
    if turn.segment != actor.segment or not begins:
        raise Conflict(
            f"{actor.id} stands at position {actor.position} of segment {actor.segment}; "
            f"the turn begins at {turn.start} of {turn.segment}"
        )


def check_own(actor: Guarded, home: SegmentRecord, position: int) -> None:
    """Refuse a version of an actor on another's segment. Raises: VersionNotFound."""
    if home.actor_id != actor.id:
        raise VersionNotFound(
            f"position {position} is part of another actor's history",
            hint=f"It is {home.actor_id}'s.",
        )


def check_incarnation(current: int, incarnation: int) -> None:
    """Refuse a writer that does not own the folder. Raises: Fenced."""
    if incarnation != current:
        raise Fenced(f"the data folder is at incarnation {current}; this writer has {incarnation}")


def check_key(known: OperationRecord | None, once: Once, *, resumable: bool = False) -> None:
    """Refuse a key that was used already, unless its turn broke and may be taken up again.

    Raises: IdempotencyMismatch; ActorBusy (it has a result by now); Conflict.
    """
    if known is None:
        return
    if known.request != once.request:
        raise IdempotencyMismatch
    if resumable:
        return
    if known.result is not None:  # since whoever asks looked for it
        raise ActorBusy(
            f"the operation of Idempotency-Key {once.key!r} has just been done",
            hint="Repeat the request: the stored result is then returned.",
        )
    raise Conflict(f"the operation of Idempotency-Key {once.key!r} has begun and has no result")


def result_of(
    *,
    actor: ActorRecord | None = None,
    version: VersionRecord | None = None,
    actors: tuple[ActorRecord, ...] | None = None,
) -> Mapping[str, Any]:
    """What is stored beside a key: the records an operation returned, as JSON objects."""
    result: dict[str, Any] = {}
    if actor is not None:
        result["actor"] = asdict(actor)
    if version is not None:
        result["version"] = asdict(version)
    if actors is not None:
        result["actors"] = [asdict(one) for one in actors]
    return result
