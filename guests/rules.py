"""Rules that make a new state of one or more old ones, selectable by family, layer and head.

A rule is a pure function of rows. It works layer by layer in float32 (float64 for float64
families) with separate, correctly rounded operations and rounds once to the family's dtype, so
that running it again gives the same bits. What is not selected keeps its bytes.

| rule | parameters | new value | default families |
|---|---|---|---|
| decay | alpha in 0..1 | alpha x | recurrent matrices: four axes, [layer, head, ., .] |
| scale | factor | factor x | all |
| zero | | 0 | all |
| blend | weights, one per entry of `others` | (1 - sum w) x + w1 y1 + w2 y2 ... | all |
| add | factor = 1 | x + factor y | all |
| noise | std, seed | x + std n; n keyed by (seed, place of the element in the row) | all |
| set | | y | all |

x is the actor's own value, y that of the version named by `from` or `others`: whoever calls has
resolved those handles into rows. decay leaves token shifts alone by default, since a smaller copy
of the last token's activation is no forgetting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statevisor.guests.bank import TORCH_DTYPES
from statevisor.guests.philox import normal
from statevisor.guests.rule_params import Param, integer, number, numbers, read_params
from statevisor.guests.rule_selection import select_families
from statevisor.hypervisor.errors import CapabilityMissing, InvalidRequest
from statevisor.hypervisor.layout import Layout, StateFamily
from statevisor.hypervisor.ports import FamilyDiff, Mutation
from statevisor.hypervisor.vocab import MAX_SEED

ENTRY_POINTS = "statevisor.rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One layer of one family, as a rule sees it; heads are cut out afterwards."""

    own: Tensor  #: [...] without the layer axis; not to be modified
    others: tuple[Tensor, ...]  #: the same layer of the other rows
    first: int  #: place of its first element among all elements of the row
    params: Mapping[str, Any]  #: checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One named rule. A change of its arithmetic is a new version."""

    name: str
    version: int
    apply: Callable[[Part], Tensor]
    params: Mapping[str, Param] = field(default_factory=dict)
    source: str | None = None  #: the parameter that names its other rows: "from", "others"
    matrices_only: bool = False  #: default families: those with a head axis
    floats_only: bool = True  #: False: also defined on families of whole numbers


def _blend(part: Part) -> Tensor:
    weights = part.params["weights"]
    if len(weights) != len(part.others):
        raise InvalidRequest(
            f"rule blend has {len(weights)} weights for {len(part.others)} others;"
            " the actor's own state takes what is left to 1"
        )
    total = part.own * _scalar(1.0 - math.fsum(weights), part.own)
    for weight, other in zip(weights, part.others, strict=True):
        total = total + other * _scalar(weight, other)
    return total


def _noise(part: Part) -> Tensor:
    drawn = normal(part.params["seed"], part.first, part.first + part.own.numel())
    scaled = torch.from_numpy(drawn * part.params["std"]).to(part.own.dtype)
    return part.own + scaled.view(part.own.shape)


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=like.dtype)


BUILTIN: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule(
                name="decay",
                version=1,
                params={"alpha": Param(number(0.0, 1.0))},
                matrices_only=True,
                apply=lambda part: part.own * _scalar(part.params["alpha"], part.own),
            ),
            Rule(
                name="scale",
                version=1,
                params={"factor": Param(number())},
                apply=lambda part: part.own * _scalar(part.params["factor"], part.own),
            ),
            Rule(
                name="zero",
                version=1,
                floats_only=False,
                apply=lambda part: torch.zeros_like(part.own),
            ),
            Rule(
                name="blend",
                version=1,
                params={"weights": Param(numbers)},
                source="others",
                apply=_blend,
            ),
            Rule(
                name="add",
                version=1,
                params={"factor": Param(number(), 1.0)},
                source="from",
                apply=lambda part: (
                    part.own + part.others[0] * _scalar(part.params["factor"], part.own)
                ),
            ),
            Rule(
                name="noise",
                version=1,
                params={"std": Param(number(0.0)), "seed": Param(integer(0, MAX_SEED - 1))},
                apply=_noise,
            ),
            Rule(
                name="set",
                version=1,
                source="from",
                floats_only=False,
                apply=lambda part: part.others[0],
            ),
        )
    }
)
#: Names and versions of the built-in rules.
RULES: Mapping[str, int] = MappingProxyType({name: rule.version for name, rule in BUILTIN.items()})


def load_rules(group: str = ENTRY_POINTS) -> Mapping[str, Rule]:
    """The built-in rules and those that installed packages add: entry points that name a `Rule`.

    Raises: CapabilityMissing (an entry point cannot be loaded, is no Rule, or takes a used name).
    """
    found = dict(BUILTIN)
    for point in entry_points(group=group):
        try:
            rule = point.load()
        except (ImportError, AttributeError) as error:
            raise CapabilityMissing(f"rule {point.name} ({point.value}): {error}") from error
        if not isinstance(rule, Rule):
            raise CapabilityMissing(f"rule {point.name} ({point.value}) is no Rule")
        if rule.name in found:
            raise CapabilityMissing(f"rule {rule.name} ({point.value}) exists already")
        found[rule.name] = rule
    return MappingProxyType(found)


def mutate(
    layout: Layout,
    mutation: Mutation,
    rows: Sequence[memoryview],
    rules: Mapping[str, Rule] = BUILTIN,
) -> bytes:
    """Run a rule on rows, first the actor's own; modifies none of them.

    Raises: InvalidRequest (unknown rule, bad parameters or selection, a result that is not finite).
    """
    rule = rules.get(mutation.rule)
    if rule is None:
        raise InvalidRequest(f"no rule {mutation.rule!r}; there are: {', '.join(sorted(rules))}")
    given = {name: value for name, value in mutation.params.items() if name != rule.source}
    params = read_params(rule.name, rule.params, given)
    _check_rows(rule, layout, rows)
    result = bytearray(rows[0])
    new = _views(layout, result)
    old = [_views(layout, bytearray(row)) for row in rows]
    for family in select_families(layout, mutation, rule):
        heads = list(mutation.heads) if mutation.heads is not None else slice(None)
        arithmetic = _arithmetic(family)
        for layer in range(family.shape[0]) if mutation.layers is None else mutation.layers:
            own, *others = (row[family.name][layer].to(arithmetic) for row in old)
            first = _first_element(layout, family) + layer * own.numel()
            part = Part(own=own, others=tuple(others), first=first, params=params)
            values = rule.apply(part).to(TORCH_DTYPES[family.dtype])
            if values.shape != own.shape:
                raise InvalidRequest(f"rule {rule.name} changed a shape to {list(values.shape)}")
            new[family.name][layer][heads] = values[heads]
            if not _is_finite(new[family.name][layer]):
                raise InvalidRequest(
                    f"rule {rule.name} gives numbers that are not finite"
                    f" in layer {layer} of family {family.name}"
                )
    return bytes(result)


def diff(layout: Layout, a: memoryview, b: memoryview) -> tuple[FamilyDiff, ...]:
    """Compare two rows, one entry per family and layer, in float64."""
    views_a, views_b = _views(layout, bytearray(a)), _views(layout, bytearray(b))
    return tuple(
        _layer_diff(family.name, layer, views_a[family.name][layer], views_b[family.name][layer])
        for family in layout.families
        for layer in range(family.shape[0])
    )


def finite(layout: Layout, row: memoryview) -> bool:
    """Whether every number of a row is finite."""
    return all(_is_finite(view) for view in _views(layout, bytearray(row)).values())


def _layer_diff(family: str, layer: int, a: Tensor, b: Tensor) -> FamilyDiff:
    # In numpy, whose sums are the same on every thread: torch's go by how many threads the caller
    # may use, which is not the same for all of ours.
    left, right = a.double().flatten().numpy(), b.double().flatten().numpy()
    norm_a, norm_b = _norm(left), _norm(right)
    cosine = None
    if norm_a and norm_b:
        cosine = max(-1.0, min(1.0, float(np.sum(left / norm_a * (right / norm_b)))))
    return FamilyDiff(
        family=family,
        layer=layer,
        norm_a=norm_a,
        norm_b=norm_b,
        distance=_norm(left - right),
        cosine=cosine,
    )


def _norm(numbers: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.sum(numbers * numbers)))


def _views(layout: Layout, row: bytearray) -> dict[str, Tensor]:
    if len(row) != layout.row_bytes:
        raise InvalidRequest(f"a row has {len(row)} bytes, the layout {layout.row_bytes}")
    return {
        family.name: torch.frombuffer(
            row,
            dtype=TORCH_DTYPES[family.dtype],
            count=math.prod(family.shape),
            offset=layout.offset(family.name),
        ).view(family.shape)
        for family in layout.families
    }


def _is_finite(values: Tensor) -> bool:
    return not values.is_floating_point() or bool(values.isfinite().all())


def _arithmetic(family: StateFamily) -> torch.dtype:
    stored = TORCH_DTYPES[family.dtype]
    if stored.is_floating_point and stored != torch.float64:
        return torch.float32
    return stored


def _first_element(layout: Layout, family: StateFamily) -> int:
    before = layout.families[: layout.families.index(family)]
    return sum(math.prod(earlier.shape) for earlier in before)


def _check_rows(rule: Rule, layout: Layout, rows: Sequence[memoryview]) -> None:
    others = len(rows) - 1
    if rule.source is None and others:
        raise InvalidRequest(f"rule {rule.name} takes no other version")
    if rule.source == "from" and others != 1:
        raise InvalidRequest(f"rule {rule.name} needs one version in the parameter 'from'")
    if rule.source is not None and not others:
        raise InvalidRequest(f"rule {rule.name} needs versions in the parameter {rule.source!r}")
