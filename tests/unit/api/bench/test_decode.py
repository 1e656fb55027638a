"""The bench of the engine loop: a small run whole, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statevisor.api.bench.decode import Plan, StepMeter, run
from statevisor.api.cli.bench import counts, shapes
from statevisor.api.cli.main import main
from statevisor.guests.geometries import GEOMETRIES, random_guest
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.sampling import SamplerSettings


def test_a_run_measures_every_batch_with_all_its_rows(tmp_path: Path) -> None:
    plan = Plan(
        geometry="demo",
        batches=(1, 3),
        steps=4,
        settings=SamplerSettings(temperature=1.0),
        state_dtype="F32",
        device="cpu",
    )
    report = run(plan, tmp_path)
    assert report["conditions"]["geometry"] == "demo"
    assert set(report["batches"]) == {"1", "3"}
    for figures in report["batches"].values():
        assert figures["tokens_per_s"] > 0
        assert figures["step_ms"]["n"] >= 4
        assert figures["journal_commit_ms"]["p50"] > 0
    assert not list(tmp_path.iterdir())


def test_both_modes_are_measured_in_one_run_with_what_exactness_costs(tmp_path: Path) -> None:
    plan = Plan(
        geometry="demo",
        batches=(1, 2),
        steps=2,
        settings=SamplerSettings(),
        state_dtype="F32",
        device="cpu",
        modes=("exact", "fast"),
        prompts=((2, 3),),
    )
    report = run(plan, tmp_path)
    rates = {
        mode: {batch: one["tokens_per_s"] for batch, one in figures["batches"].items()}
        for mode, figures in report["modes"].items()
    }
    costs = report["exact_cost"]
    assert costs["2"] == round(rates["fast"]["2"] / rates["exact"]["2"], 4)
    assert costs["worst"] == max(costs["1"], costs["2"])
    for figures in report["modes"].values():
        assert figures["prefill"].keys() == figures["prefill_ms"].keys() == {"2x3"}
        assert figures["prefill"]["2x3"] == round(6e3 / figures["prefill_ms"]["2x3"]["p50"])


@pytest.mark.parametrize("text", ["1x", "x5", "0x3", "3", "1x2,,3x4"])
def test_what_is_no_list_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        shapes(text)
    assert shapes("1x512, 32x32") == ((1, 512), (32, 32))
    assert shapes("") == ()


async def test_only_steps_of_all_rows_count() -> None:
    meter = StepMeter()
    meter.expect(3, 2)
    for rows in (1, 3, 2, 3):
        assert not meter.enough.is_set()
        meter.observe("step_seconds", rows / 10)
        meter.observe("step_rows", rows)
    assert meter.enough.is_set()
    assert meter.seconds == [0.3, 0.3]


@pytest.mark.parametrize("text", ["", "1,", "0", "-3", "1;2"])
def test_what_is_no_list_of_counts_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        counts(text)


def test_a_geometry_that_is_not_known_is_refused() -> None:
    assert {"191m", "1.5b", "2.9b", "7.2b", "demo"} == set(GEOMETRIES)
    with pytest.raises(InvalidRequest, match="8b"):
        random_guest("8b", slots=1, state_dtype="F32", device="cpu")


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "decode", "--batch", "1", "--steps", "3", "--device", "cpu", "--json"]
    assert main([*command, "--scratch", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["bench"] == "decode"
