"""Checks of a rule's parameters: what a caller sent becomes plain numbers or one clear error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from statevisor.hypervisor.errors import InvalidRequest

#: Gives the value to use. Raises ValueError with what the value must be.
Check = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a rule."""

    check: Check
    default: Any = None  #: None: the parameter is required


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number in low..high, as a float."""

    def check(value: Any) -> float:
        if not _is_number(value) or not low <= value <= high:
            raise ValueError(f"a finite number{_span(low, high)}")
        return float(value)

    return check


def integer(low: int, high: int) -> Check:
    """A whole number in low..high."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a whole number{_span(low, high)}")
        return value

    return check


def numbers(value: Any) -> tuple[float, ...]:
    """One or more finite numbers."""
    if not isinstance(value, (list, tuple)) or not value or not all(map(_is_number, value)):
        raise ValueError("a list of finite numbers")
    return tuple(map(float, value))


def read_params(rule: str, wanted: Mapping[str, Param], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check all parameters. Raises: InvalidRequest (unknown, missing or of the wrong form)."""
    unknown = sorted(given.keys() - wanted.keys())
    if unknown:
        names = ", ".join(wanted) or "none"
        raise InvalidRequest(f"rule {rule} has no parameter {unknown[0]!r}; it takes: {names}")
    found = {}
    for name, param in wanted.items():
        value = given.get(name, param.default)
        if value is None:
            raise InvalidRequest(f"rule {rule} needs the parameter {name!r}")
        try:
            found[name] = param.check(value)
        except ValueError as error:
            raise InvalidRequest(f"{name} of rule {rule} must be {error}") from None
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _span(low: float, high: float) -> str:
    match math.isfinite(low), math.isfinite(high):
        case True, True:
            return f" in {low}..{high}"
        case True, False:
            return f", {low} or more"
        case _:
            return ""
