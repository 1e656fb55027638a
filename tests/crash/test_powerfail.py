"""Power failures of the whole hypervisor, in short; `run_powerfail.py` is the long form."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import recording
import run_powerfail
from disk import Call

pytestmark = pytest.mark.crash
compiled = pytest.mark.skipif(
    recording.compiler() is None,
    reason="no C compiler (cc, gcc or clang): system calls cannot be recorded",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A life that is killed, and one that recovers and works on."""
    made = recording.Recording(tmp_path_factory.mktemp("run"))
    made.live(1, steps=100, stop=700)
    made.live(2, steps=3)
    return made


@compiled
def test_the_recording_explains_every_byte(run):
    assert recording.differences(run) == []


@compiled
@pytest.mark.parametrize("name", ["catalog.db-wal", ".slab", "acks"])
def test_a_write_that_was_missed_is_noticed(run, name):
    kept, names, last = list(run.log), {}, 0
    for n, entry in enumerate(kept):
        if entry.call is Call.OPEN:
            names[entry.fd] = entry.data.decode()
        elif entry.call is Call.WRITE and names[entry.fd].endswith(name):
            last = n
    assert last
    run.log[:] = kept[:last] + kept[last + 1 :]
    try:
        assert any(one.endswith(name) for one in recording.differences(run))
    finally:
        run.log[:] = kept


@compiled
def test_a_power_failure_loses_nothing(run, tmp_path):
    bench = run_powerfail.Bench(tmp_path)
    run_powerfail.fail_power(bench, run, 14, random.Random(1))
    assert bench.faults == []
    assert bench.count["states"] == 14
    assert bench.count["acks"] > 14
    assert bench.count["images"] > 14


# -- mutants: one guard out, and the checks above must see it --------------------------------------
@compiled
@pytest.mark.parametrize("mutant", ["synchronous=NORMAL", "no slab sync"])
def test_a_sync_that_is_left_out_is_caught(tmp_path, mutant):
    run = recording.Recording(tmp_path / "run")
    run.live(3, tour=True, mutant=mutant)
    bench = run_powerfail.Bench(tmp_path)
    rng = random.Random(2)
    for _ in range(4):
        run_powerfail.fail_power(bench, run, 6, rng)
        if bench.faults:
            break
    word = "image" if mutant == "no slab sync" else "lost"
    assert any(word in fault for fault in bench.faults), bench.faults


# -- without a compiler ----------------------------------------------------------------------------
@pytest.mark.parametrize("mutant", [None, "no slab sync", "synchronous=NORMAL"])
def test_what_python_records_shows_the_same(tmp_path, mutant):
    run = recording.Recording(tmp_path / "run", compiled=False)
    run.live(3, tour=True, mutant=mutant)
    assert [one for one in recording.differences(run) if not one.endswith("lock")] == []
    bench = run_powerfail.Bench(tmp_path)
    run_powerfail.fail_power(bench, run, 6, random.Random(4))
    assert bool(bench.faults) is (mutant is not None), bench.faults
