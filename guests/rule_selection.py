"""Which families, layers and heads a mutation is to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from statevisor.guests.bank import TORCH_DTYPES
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.layout import Layout, StateFamily
from statevisor.hypervisor.ports import Mutation


class Needs(Protocol):
    """What a rule says of the families it is defined on."""

    @property
    def name(self) -> str: ...
    @property
    def matrices_only(self) -> bool: ...
    @property
    def floats_only(self) -> bool: ...


def select_families(layout: Layout, mutation: Mutation, rule: Needs) -> list[StateFamily]:
    """The selected families, every index of the selection checked against each of them.

    Raises: InvalidRequest (names the first bad entry and what there is).
    """
    if mutation.families is None:
        chosen = [family for family in layout.families if _suits(family, mutation, rule)]
        if not chosen:
            raise InvalidRequest(f"no family of this guest suits rule {rule.name} so selected")
    else:
        chosen = [_named(layout, name, rule) for name in _unique("families", mutation.families)]
    for family in chosen:
        if mutation.heads is not None and not _has_heads(family):
            raise InvalidRequest(f"family {family.name} has no heads to select")
        _check_indices("layers", mutation.layers, family, 0)
        _check_indices("heads", mutation.heads, family, 1)
    return chosen


def _suits(family: StateFamily, mutation: Mutation, rule: Needs) -> bool:
    if rule.floats_only and not TORCH_DTYPES[family.dtype].is_floating_point:
        return False
    return _has_heads(family) or not (rule.matrices_only or mutation.heads is not None)


def _has_heads(family: StateFamily) -> bool:
    return len(family.shape) == 4


def _named(layout: Layout, name: str, rule: Needs) -> StateFamily:
    try:
        family = layout.family(name)
    except KeyError:
        names = ", ".join(family.name for family in layout.families)
        raise InvalidRequest(f"no family {name!r}; there are: {names}") from None
    if rule.floats_only and not TORCH_DTYPES[family.dtype].is_floating_point:
        raise InvalidRequest(f"rule {rule.name} is not defined on family {name}: {family.dtype}")
    return family


def _check_indices(
    what: str, chosen: tuple[int, ...] | None, family: StateFamily, axis: int
) -> None:
    for index in () if chosen is None else _unique(what, chosen):
        whole = isinstance(index, int) and not isinstance(index, bool)
        if not whole or not 0 <= index < family.shape[axis]:
            raise InvalidRequest(
                f"{what}: {index!r} is not in 0..{family.shape[axis] - 1} of family {family.name}"
            )


def _unique(what: str, chosen: tuple[Any, ...]) -> Iterator[Any]:
    if not chosen:
        raise InvalidRequest(f"{what}: an empty selection; leave it out to select all")
    if len(set(chosen)) != len(chosen):
        raise InvalidRequest(f"{what}: an entry is there twice")
    return iter(chosen)
