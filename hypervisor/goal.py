"""What a turn is to do, and how its journal row keeps that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from statevisor.hypervisor.sampling import SamplerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Of one turn."""

    settings: SamplerSettings = field(default_factory=SamplerSettings)
    seed: int = 0
    max_tokens: int = 0  #: 0: absorb only
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()  #: end-of-text ids included unless ignored


#: Measured: `asdict` takes five times as long, and every turn has a record.
_SETTINGS = tuple(setting.name for setting in fields(SamplerSettings))


def goal_record(goal: Goal) -> Mapping[str, Any]:
    """A goal as its turn's row keeps it."""
    settings = goal.settings
    return {
        **{name: getattr(settings, name) for name in _SETTINGS},
        "seed": goal.seed,
        "max_tokens": goal.max_tokens,
        "stop": list(goal.stop),
        "stop_ids": sorted(goal.stop_ids),
    }


def goal_from(record: Mapping[str, Any]) -> Goal:
    """The goal that `goal_record` kept."""
    rest = dict(record)
    return Goal(
        seed=rest.pop("seed"),
        max_tokens=rest.pop("max_tokens"),
        stop=tuple(rest.pop("stop")),
        stop_ids=frozenset(rest.pop("stop_ids")),
        settings=SamplerSettings(**rest),
    )
