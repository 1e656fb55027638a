"""A short leg of `run.py`: random lives agree with the model, and faults put in are found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from statemodel.crowd import throng
from statemodel.machine import Life, StoredLife

from statevisor.store.db import migrate

RUN = Path(__file__).parent / "run.py"


@pytest.fixture(scope="module")
def run() -> Any:
    spec = importlib.util.spec_from_file_location("model_run", RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_lives_agree_with_the_model(run: Any) -> None:
    assert run.live(Life, 400, 1, steps=40) > 300


class LifeAhead(Life):
    """A life whose steps begin before the last one is read."""

    @staticmethod
    def spoil(world: Any) -> None:
        world.guest.steps_ahead = 2


def test_lives_that_step_ahead_agree_with_the_model(run: Any) -> None:
    assert run.live(LifeAhead, 200, 3, steps=40) > 150


def test_a_life_on_the_real_store_agrees_with_the_model(run: Any, tmp_path: Path) -> None:
    StoredLife.migrated = migrate(tmp_path)
    assert run.live(StoredLife, 60, 1, steps=30) > 30


def test_a_crowd_of_clients_leaves_nothing_undone(run: Any) -> None:
    assert throng(200, 1) >= 150


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        ("wrong-twin", 1),
        ("same-seed", 1),
        ("lost-rule", 1),
        ("early-gate", 1),
        ("unmasked-stop", 5),  # the lives of lower seeds take longer to meet it
    ],
)
def test_a_fault_is_found(run: Any, mutant: str, first: int) -> None:
    # A life of a busy machine may end before its fault is met: others follow. No life finds a
    # fault that is not there, so more of them make the test no weaker.
    assert any(run.catch(mutant, 6000, seed) is not None for seed in range(first, first + 5))
