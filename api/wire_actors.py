"""Actors on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from statevisor.api.cursors import AfterActor
from statevisor.api.wire import (
    Body,
    ChangeFields,
    LabelFilter,
    Labels,
    Limit,
    ModelName,
    Name,
    Part,
    Place,
    Query,
    Ref,
    Seed,
    timestamp,
)
from statevisor.api.wire_turns import Prompted
from statevisor.hypervisor.commands import (
    ActorView,
    CostView,
    CreateActor,
    Fork,
    Hibernate,
    Resume,
    Rollback,
    UpdateActor,
)
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.vocab import Rng, Tier

#: Seconds; a hundred years is for ever.
Ttl = Annotated[int, Field(ge=0, le=100 * 366 * 86400)]
RngWord = Literal["reseed", "inherit"]


class CreateBody(Prompted):
    """POST /v1/actors."""

    model: ModelName | None = None
    name: Name | None = None
    seed: Seed | None = None
    labels: Labels = Field(default_factory=dict)
    source: Annotated[Ref | None, Field(alias="from")] = None

    def command(self, change: ChangeFields) -> CreateActor:
        """The command."""
        return CreateActor(
            model=self.model,
            name=self.name,
            prompt=self.words,
            seed=self.seed,
            labels=self.labels,
            source=self.source,
            **change,
        )


class ActorsQuery(Query):
    """Filters and page of the list of actors."""

    status: Power | None = None
    model: ModelName | None = None
    tier: Tier | None = None
    label: LabelFilter | None = None
    q: Annotated[Part | None, Field(description="a part of the name")] = None
    limit: Limit = 50
    after: AfterActor | None = None


class UpdateBody(Body):
    """PATCH /v1/actors/{a}; a field left out stays, `ttl: null` and `ttl: 0` take the ttl away."""

    name: Name | None = None
    labels: Labels | None = None
    pinned: bool | None = None
    ttl: Ttl | None = None

    def command(self, actor: str, change: ChangeFields) -> UpdateActor:
        """The command for one actor."""
        cleared = "ttl" in self.model_fields_set and self.ttl is None
        return UpdateActor(
            actor=actor,
            name=self.name,
            labels=self.labels,
            pinned=self.pinned,
            ttl_s=0 if cleared else self.ttl,
            **change,
        )


class ForkBody(Body):
    """POST /v1/actors/{a}/fork; names or seeds, where given, are one per child."""

    count: Annotated[int, Field(ge=1, lt=2**31)] = 1
    names: Annotated[list[Name], Field(max_length=65536)] = Field(default_factory=list)
    at: Place | None = None
    rng: RngWord = "reseed"
    dry_run: Annotated[bool, Field(description="only tell what it would cost")] = False
    seeds: Annotated[list[Seed], Field(max_length=65536)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_per_child(self) -> Self:
        for given, what in ((len(self.names), "names"), (len(self.seeds), "seeds")):
            if given and given != self.children:
                raise ValueError(f"{given} {what} for {self.children} children")
        if len(set(self.names)) != len(self.names):
            raise ValueError("names must differ")
        return self

    @property
    def children(self) -> int:
        """How many to make: `count`, or as many as names or seeds are given."""
        if "count" in self.model_fields_set:
            return self.count
        return len(self.names) or len(self.seeds) or self.count

    def command(self, actor: str, change: ChangeFields) -> Fork:
        """The command for one actor."""
        return Fork(
            actor=actor,
            count=self.children,
            names=tuple(self.names),
            at=self.at,
            rng=Rng(self.rng),
            seeds=tuple(self.seeds),
            **change,
        )


class RollbackBody(Body):
    """POST /v1/actors/{a}/rollback."""

    to: Place
    rng: RngWord = "reseed"
    dry_run: Annotated[bool, Field(description="only tell what it would cost")] = False

    def command(self, actor: str, change: ChangeFields) -> Rollback:
        """The command for one actor."""
        return Rollback(actor=actor, to=self.to, rng=Rng(self.rng), **change)


class HibernateBody(Body):
    """POST /v1/actors/{a}/hibernate."""

    tier: Literal["host", "nvme"] = "nvme"

    def command(self, actor: str, change: ChangeFields) -> Hibernate:
        """The command for one actor."""
        return Hibernate(actor=actor, tier=Tier(self.tier), **change)


class ResumeBody(Body):
    """POST /v1/actors/{a}/resume; there is one place to resume to."""

    tier: Literal["gpu"] = "gpu"

    def command(self, actor: str, change: ChangeFields) -> Resume:
        """The command for one actor."""
        return Resume(actor=actor, **change)


class ActorObject(TypedDict):
    """An actor as committed, with where it is now."""

    object: Literal["actor"]
    id: str
    name: str
    model: str
    status: Literal[
        "idle", "running", "hibernating", "hibernated", "resuming", "quarantined", "deleted"
    ]
    tier: Literal["gpu", "host", "nvme"]
    position: int
    durable_position: int
    generation: int
    head: str
    parent: str | None
    seed: int
    pinned: bool
    labels: dict[str, str]
    ttl: int | None
    base: int
    quarantine: str | None
    created_at: str
    updated_at: str


def actor_object(view: ActorView) -> dict[str, Any]:
    """An actor."""
    record = view.record
    return {
        "object": "actor",
        "id": record.id,
        "name": record.name,
        "model": record.model,
        "status": view.status,
        "tier": view.tier.value,
        "position": record.position,
        "durable_position": view.durable_position,
        "generation": record.generation,
        "head": f"{record.name}@{record.head}",
        "parent": record.parent,
        "seed": record.seed,
        "pinned": record.pinned,
        "labels": dict(record.labels),
        "ttl": record.ttl_s,
        "base": record.base,
        "quarantine": record.quarantine,
        "created_at": timestamp(record.created_at),
        "updated_at": timestamp(record.updated_at),
    }


class CostObject(TypedDict):
    """What the first touch behind a fork or a rollback would pay."""

    object: Literal["cost"]
    dry_run: Literal[True]
    actor: str
    position: int
    source: Literal["slot", "image", "empty"]
    source_position: int
    image: str | None
    tokens: int
    estimated_ms: float | None
    bound: Literal["dense", "sparse"]
    bound_tokens: int


def cost_object(view: CostView) -> CostObject:
    """What a dry run tells."""
    return {
        "object": "cost",
        "dry_run": True,
        "actor": view.actor,
        "position": view.position,
        "source": view.source.value,
        "source_position": view.source_position,
        "image": view.image,
        "tokens": view.tokens,
        "estimated_ms": None if view.replay_s is None else round(view.replay_s * 1e3, 3),
        "bound": view.bound.value,
        "bound_tokens": view.bound_tokens,
    }
