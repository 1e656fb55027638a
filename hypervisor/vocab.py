"""The words of the product as types: names, handles, tiers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from statevisor.hypervisor.errors import InvalidRequest

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(NAME_PATTERN + r"\Z")
_HANDLE = re.compile(rf"({NAME_PATTERN})@(\d{{1,18}})\Z")

#: Every actor's id begins with this and no name does, so that one text never means two actors.
ACTOR_PREFIX = "act_"

#: Seeds are below 2^53 so that every JSON reader keeps them exact.
MAX_SEED = 2**53


class Tier(StrEnum):
    """Where the newest bytes of an actor's state are."""

    GPU = "gpu"  # a slot of the bank (on a CPU host too)
    HOST = "host"  # a frame in host memory
    NVME = "nvme"  # an extent in a slab, or only a position of the journal


class Op(StrEnum):
    """What made a version."""

    CREATE = "create"
    TURN = "turn"
    SNAPSHOT = "snapshot"
    FORK = "fork"
    MUTATE = "mutate"
    ROLLBACK = "rollback"
    IMPORT = "import"


class Rng(StrEnum):
    """What a fork or a rollback does with the sampler's seed."""

    RESEED = "reseed"
    INHERIT = "inherit"


class Source(StrEnum):
    """What a state is made from when its actor wakes."""

    SLOT = "slot"  # a copy of another actor's slot that holds just this state
    IMAGE = "image"
    EMPTY = "empty"  # from the first token on


class Bound(StrEnum):
    """Which rule bounds the replay of a place in the past."""

    DENSE = "dense"  # every checkpoint stays here
    SPARSE = "sparse"  # one for every power of two stays


class FinishReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Handle:
    """`name@seq`: one version. `name` may be an actor's id."""

    name: str
    seq: int

    def __str__(self) -> str:
        return f"{self.name}@{self.seq}"


def check_name(name: str) -> str:
    """Return the name if it matches the pattern. Raises: InvalidRequest."""
    if name.startswith(ACTOR_PREFIX):
        raise InvalidRequest(
            f"{name[:140]!r} is not a name: what begins with {ACTOR_PREFIX!r} is an actor's id",
            hint="Choose another name.",
        )
    if not _NAME.match(name):
        raise InvalidRequest(f"{name[:140]!r} is not a name: it must match {NAME_PATTERN}")
    return name


def parse_handle(text: str) -> Handle | None:
    """`name@seq` as a Handle, or None if the text is no handle (then it may be a tag)."""
    match = _HANDLE.match(text)
    return Handle(match[1], int(match[2])) if match else None
