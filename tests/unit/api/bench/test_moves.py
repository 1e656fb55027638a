"""The bench of moves: a small run whole, and what it takes for steps, pauses and moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from statevisor.api.bench.arrivals import spread
from statevisor.api.bench.moves import PARTS, measure, run
from statevisor.api.bench.scene import Plan, Scene
from statevisor.api.bench.stage import staged
from statevisor.api.bench.step_log import Step, StepLog, milliseconds, pauses
from statevisor.api.cli.main import main
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.vocab import Tier


def plan(**changes: Any) -> Plan:
    small: dict[str, Any] = {
        **{"geometry": "demo", "state_dtype": "F32", "device": "cpu", "slots": 4, "rounds": 2},
        **{"parts": tuple(PARTS), "steps": 2, "prompt_tokens": 40, "arrivals": 4},
    }
    return Plan(**(small | changes))


async def test_every_part_is_measured_and_told_when_it_is_done(tmp_path: Path) -> None:
    told: dict[str, Mapping[str, Any]] = {}
    report = await measure(plan(), ToyGuest(slots=4), told.__setitem__, tmp_path)
    assert list(told) == list(PARTS)
    for figures in told.values():
        assert figures["part_s"] >= 0
        for name in figures.keys() - {"part_s"}:
            assert report[name] == figures[name]
    for name in ("resume_host_ms", "resume_nvme_ms", "hibernate_ms", "resume_host_busy_ms"):
        assert report[name]["n"] == 2
        assert len(report["samples"][name]) == 2
    for told_ms, drawn_ms, gate_ms in zip(
        *(report["samples"][f"{name}_ms"] for name in ("resume_host", "resume_host_drawn", "gate")),
        strict=True,
    ):
        assert 0 < gate_ms < told_ms
        assert told_ms == pytest.approx(drawn_ms + gate_ms, abs=1e-3)
    for tier in ("host", "nvme"):
        assert report["hibernate64"][tier]["actors"] == 2
        assert report["hibernate64"][tier]["meanwhile"]["step_ms"]["n"] > 0
    assert report["prompt16k"]["step_p99_ratio"] > 0
    assert report["arrivals"]["turns"] == 4
    assert report["fork64_device_copies"] == 3
    assert report["create_snapshot_per_s"] > 0
    assert report["memory"]["resident"] == 4
    assert report["memory_efficiency"] == 0.8  # there is the padding row too


def test_the_command_prints_one_object_and_a_line_for_each_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "moves", "--slots", "4", "--device", "cpu", "--rounds", "1", "--json"]
    parts = ["resume_host", "memory_efficiency"]
    assert main([*command, "--parts", ",".join(parts), "--scratch", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["resume_host_ms"]["n"] == 1
    assert report["conditions"]["row_bytes"] * 5 == report["memory"]["bank_bytes"]
    assert [json.loads(line)["part"] for line in printed.err.splitlines()] == parts
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [{"parts": ("resume", "arrivals")}, {"slots": 3}])
def test_what_cannot_be_measured_is_refused(changes: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        run(plan(**changes), lambda part, figures: None)


def tell(log: StepLog, seconds: float, rows: int) -> None:
    log.observe("step_seconds", seconds)
    log.observe("step_rows", float(rows))


def test_steps_that_were_given_at_once_are_one_pause() -> None:
    log = StepLog()
    for seconds in (0.002, 0.003, 0.003, 0.003, 0.002):
        tell(log, seconds, 4)
    assert milliseconds(log.steps) == [2, 3, 3, 3, 2]
    assert pauses(log.steps) == pytest.approx([2, 9, 2])


def test_a_step_belongs_to_every_span_in_which_it_ran() -> None:
    log = StepLog()
    log.steps = [Step(end, 1, 1.0) for end in (1.0, 2.0, 3.0, 4.0)]
    assert [step.end for step in log.within((1.5, 1.6), (3.5, 4.5))] == [2.0, 4.0]
    assert [step.end for step in log.within((1.0, 2.5))] == [2.0, 3.0]
    assert log.within((4.0, 9.0)) == []


async def test_only_steps_of_all_rows_are_waited_for() -> None:
    log = StepLog()
    waiting = asyncio.ensure_future(log.passed(2, rows=3))
    await asyncio.sleep(0)
    for rows in (1, 3, 2):
        tell(log, rows / 10, rows)
    await asyncio.sleep(0)
    assert not waiting.done()
    tell(log, 0.4, 3)
    assert [step.seconds for step in await waiting] == [0.3, 0.4]


def test_a_slow_step_is_seen_in_its_own_bucket_alone() -> None:
    steps = [Step(0.0, 1, 0.001)] * 300 + [Step(0.0, 3, 0.002)] * 300
    even = spread(steps, (1, 2, 4))
    assert even["over_own_bucket"]["p99"] == 1.0
    assert even["step_ms"]["p99"] == 2 * even["step_ms"]["p50"]  # of all buckets together
    slow = spread([*steps, *[Step(0.0, 4, 0.010)] * 10], (1, 2, 4))
    assert slow["worst_bucket"] == ("4", 5.0)
    assert slow["buckets"]["1"]["p99_over_p50"] == 1.0


async def test_a_move_that_did_not_happen_is_no_sample(tmp_path: Path) -> None:
    guest, log = ToyGuest(), StepLog()
    config = VisorConfig(host_bytes=4 * guest.layout.row_bytes)
    async with staged(tmp_path, guest, config, meter=log) as stage:
        visor = stage.visor
        scene = Scene(plan=plan(), visor=visor, guest=guest, log=log, folder=tmp_path)
        async with scene.actors("actor", 1, prompt="Once") as (name,):
            assert await scene.hibernate(name, Tier.NVME) > 0
            with pytest.raises(AssertionError, match="nvme, not in host"):
                await scene.hibernate(name, Tier.HOST)
