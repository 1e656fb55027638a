"""How the rate of training goes."""

from __future__ import annotations

import pytest

from statevisor.guests.demo.trainer import schedule


def test_the_rate_rises_then_falls() -> None:
    rates = [schedule(done / 100) for done in range(101)]

    assert rates[0] == 0
    assert max(rates) == rates[2] == 1
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(0.04)
