"""One configuration for each autotuned kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statevisor.guests.demo.pinning import nearest, pin_autotuning


def config(warps: int, stages: int, **tiles: Any) -> SimpleNamespace:
    return SimpleNamespace(num_warps=warps, num_stages=stages, kwargs=tiles)


def test_the_nearest_has_four_warps_two_stages_and_tiles_of_64() -> None:
    configs = [
        config(warps, stages, BK=tile)
        for tile in (32, 64, 128)
        for warps in (2, 4, 8)
        for stages in (2, 3)
    ]

    assert nearest(configs) == config(4, 2, BK=64)


def test_of_equals_the_first_is_taken_and_odd_settings_do_not_matter() -> None:
    assert nearest([config(4, 2, BT=2), config(4, 2, BT=8)]).kwargs == {"BT": 2}
    assert nearest([config(8, 2, mode="large"), config(4, 2, mode="large")]).num_warps == 4


@pytest.mark.parametrize("count", [1, 6])
def test_every_autotuner_made_afterwards_has_one_configuration(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "")
    kept: list[Any] = []
    monkeypatch.setattr(
        autotuner.Autotuner, "__init__", lambda self, fn, names, configs: kept.append(configs)
    )

    pin_autotuning()
    autotuner.Autotuner(None, [], [config(warps, 2) for warps in range(1, count + 1)])

    assert [len(configs) for configs in kept] == [1]
