"""Tiers, eviction and drain on the wire."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from statevisor.api.wire import Body, Name
from statevisor.hypervisor.commands import DrainView, Evict, EvictView, TierView
from statevisor.hypervisor.vocab import Tier

_ORDER = list(Tier)  # from the fastest down


class EvictBody(Body):
    """POST /v1/tiers/evict; at most one of actors, older_than_s, bytes and count."""

    source: Annotated[Literal["gpu", "host"], Field(alias="from")]
    target: Annotated[Literal["host", "nvme"], Field(alias="to")]
    actors: Annotated[list[Name], Field(max_length=65536)] | None = None
    older_than_s: Annotated[float, Field(ge=0)] | None = None
    bytes: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    count: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if _ORDER.index(Tier(self.target)) <= _ORDER.index(Tier(self.source)):
            raise ValueError("an eviction goes down: from gpu to host or nvme, from host to nvme")
        if len({"actors", "older_than_s", "bytes", "count"} & self.model_fields_set) > 1:
            raise ValueError("give one of actors, older_than_s, bytes and count")
        return self

    def command(self) -> Evict:
        """The command."""
        return Evict(
            source=Tier(self.source),
            target=Tier(self.target),
            actors=None if self.actors is None else tuple(self.actors),
            older_than_s=self.older_than_s,
            nbytes=self.bytes,
            count=self.count,
            dry_run=self.dry_run,
        )


class SlotsObject(TypedDict):
    """Slots of the top tier."""

    capacity: int
    used: int


class TierObject(TypedDict):
    """How full one tier is; slots are null where a tier has none."""

    object: Literal["tier"]
    tier: Literal["gpu", "host", "nvme"]
    slots: SlotsObject | None
    capacity_bytes: int
    used_bytes: int
    actors: int


class EvictObject(TypedDict):
    """What an eviction moved, or would move; skipped actors run or are pinned."""

    object: Literal["evict"]
    moved: list[str]
    skipped: list[str]
    bytes: int
    dry_run: bool


class DrainObject(TypedDict):
    """What a drain did."""

    object: Literal["drain"]
    hibernated: int
    images: int
    failed: list[str]


def tier_object(view: TierView) -> TierObject:
    """How full one tier is."""
    slots: SlotsObject | None = None
    if view.slots_capacity is not None:
        slots = {"capacity": view.slots_capacity, "used": view.slots_used or 0}
    return {
        "object": "tier",
        "tier": view.tier.value,
        "slots": slots,
        "capacity_bytes": view.capacity_bytes,
        "used_bytes": view.used_bytes,
        "actors": view.actors,
    }


def evict_object(view: EvictView, dry_run: bool) -> EvictObject:
    """What an eviction moved."""
    return {
        "object": "evict",
        "moved": list(view.moved),
        "skipped": list(view.skipped),
        "bytes": view.nbytes,
        "dry_run": dry_run,
    }


def drain_object(view: DrainView) -> DrainObject:
    """What a drain did."""
    return {
        "object": "drain",
        "hibernated": view.hibernated,
        "images": view.images,
        "failed": list(view.failed),
    }
