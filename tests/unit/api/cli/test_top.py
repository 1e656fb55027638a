"""The live view: metrics summed, rates, one picture."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.api.cli.top import Sample, totals

METRICS = """\
# HELP statevisor_generation_tokens_total Tokens
# TYPE statevisor_generation_tokens_total counter
statevisor_generation_tokens_total{model="a b}c"} 10.0
statevisor_generation_tokens_total{model="d"} 5.0 1700000000000
statevisor_prompt_tokens_total 3.0
"""


def test_metrics_are_summed_over_labels() -> None:
    assert totals(METRICS) == {
        "statevisor_generation_tokens_total": 15.0,
        "statevisor_prompt_tokens_total": 3.0,
    }


def test_rates_need_two_samples() -> None:
    first = Sample(at=1.0, actors=[], tiers=[], metrics={"x": 10.0})
    second = Sample(at=3.0, actors=[], tiers=[], metrics={"x": 30.0, "new": 4.0})

    assert first.rate("x", None) is None
    assert second.rate("x", first) == pytest.approx(10.0)
    assert second.rate("new", first) == pytest.approx(2.0)


def test_one_picture(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors", shapes.listing(shapes.actor("alice", status="running")))
    tier = {
        "tier": "gpu",
        "slots": {"capacity": 8, "used": 1},
        "capacity_bytes": 8,
        "used_bytes": 1,
    }
    server.answer("GET", "/v1/tiers", {"data": [{**tier, "actors": 1}]})
    server.answer("GET", "/metrics", raw=METRICS.encode())

    ran = cli("top", "--once")

    assert ran.code == 0
    assert "1 actors (1 running)" in ran.out
    assert "1/8" in ran.out
    assert "alice" in ran.out
