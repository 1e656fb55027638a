"""A measurement has a server's interpreter, and leaves it as it was."""

from __future__ import annotations

import gc
import sys

import pytest

from statevisor.api.bench.as_served import as_served
from statevisor.api.garbage import SELDOM
from statevisor.api.server import SWITCH_S


def _failing(seen: list[object]) -> None:
    with as_served():
        seen += [sys.getswitchinterval(), gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()]
        raise KeyError


def test_threads_and_the_collector_are_set_as_a_server_sets_them_and_put_back() -> None:
    before = sys.getswitchinterval(), gc.get_threshold(), gc.isenabled()
    seen: list[object] = []
    with pytest.raises(KeyError):
        _failing(seen)
    turns, thresholds, enabled, frozen = seen
    assert turns == pytest.approx(SWITCH_S)
    assert (thresholds, enabled) == (SELDOM, True)
    assert frozen
    assert sys.getswitchinterval() == pytest.approx(before[0])
    assert (gc.get_threshold(), gc.isenabled()) == before[1:]
    assert gc.get_freeze_count() == 0
