"""kill -9 of the whole hypervisor, in short; `run_kill.py` is the long form.

`STATEVISOR_CRASH_ROUNDS` sets how many lives are ended at a random instant.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import run_kill

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("STATEVISOR_CRASH_ROUNDS", "5"))


@pytest.fixture(scope="module")
def nest() -> Iterator[run_kill.Nursery]:
    """The process that forks lives."""
    with run_kill.nursery() as made:
        yield made


def test_a_kill_at_a_random_instant_loses_nothing(nest, tmp_path):
    tally = run_kill.at_random(nest, tmp_path, ROUNDS)
    assert tally.faults == []
    assert tally.count["killed"] == ROUNDS
    assert tally.count["acks"] > 5 * ROUNDS
    assert tally.count["images"] > ROUNDS


def test_a_kill_between_two_effects_loses_nothing(nest, tmp_path):
    tally = run_kill.at_points(nest, tmp_path, stride=270, first=100)
    assert tally.faults == []
    assert tally.count["killed"] >= 3, tally.count


def test_a_kill_of_a_real_model_loses_nothing(nest, tmp_path):
    model = run_kill.tiny_model(tmp_path / "model")
    tally = run_kill.at_statement(
        nest, tmp_path, "INSERT INTO journal", tries=1, first=6, guest=str(model)
    )
    assert tally.faults == []
    assert tally.count["killed"] == 1
    assert tally.count["tokens"] >= 5
    assert tally.count["continuations"] > 0


def test_an_owner_that_was_overtaken_is_told_nothing(nest, tmp_path):
    tally = run_kill.overtaken(nest, tmp_path, 1)
    assert tally.faults == []
    assert tally.count["tokens"] > 0


@pytest.mark.parametrize("committed", [False, True], ids=["before", "behind its commit"])
def test_a_kill_while_an_image_loses_its_name_loses_nothing_else(nest, tmp_path, committed):
    tally = run_kill.at_statement(
        nest, tmp_path, "DELETE FROM checkpoint", tries=1, committed=committed
    )
    assert tally.faults == []
    assert tally.count["killed"] == 1


# -- mutants: one guard out, and the checks above must see it --------------------------------------
def test_a_missing_fence_is_caught(nest, tmp_path):
    assert run_kill.overtaken(nest, tmp_path, 3, "no fence").faults


def test_a_gate_that_opens_early_is_caught(nest, tmp_path):
    tally = run_kill.at_statement(nest, tmp_path, "INSERT INTO journal", "early gate")
    assert any("tokens" in fault for fault in tally.faults), tally.faults


def test_a_row_before_its_bytes_is_caught(nest, tmp_path):
    tally = run_kill.at_statement(
        nest, tmp_path, "INSERT INTO checkpoint", "row before bytes", committed=True
    )
    assert any("image" in fault for fault in tally.faults), tally.faults


def test_a_life_without_a_fault_passes_at_the_same_statements(nest, tmp_path):
    for begins, committed in (("INSERT INTO journal", False), ("INSERT INTO checkpoint", True)):
        tally = run_kill.at_statement(nest, tmp_path / begins, begins, tries=1, committed=committed)
        assert tally.faults == []
        assert tally.count["killed"] == 1


# -- tampering: the checks see what no guard was asked about ---------------------------------------
@pytest.mark.parametrize(
    ("sql", "sign"),
    [
        (
            "UPDATE mutation SET params = json_replace(params, '$.factor', 0.1, '$.alpha', 0.1)",
            "wrong bytes",
        ),
        ("UPDATE actor SET seed = seed + 1", "seed"),
        ("UPDATE turn SET position = position - 1", "turn"),
        ("DELETE FROM checkpoint", "image"),
    ],
)
def test_what_was_tampered_with_is_noticed(nest, tmp_path, sql, sign):
    folder = run_kill.Folder(tmp_path)
    assert nest.live(**folder.order(1), tour=True)[0] == 0
    with closing(sqlite3.connect(folder.data / "catalog.db", isolation_level=None)) as db:
        assert db.execute(sql).rowcount > 0
    assert any(sign in fault for fault in folder.check(lives=0).faults)
