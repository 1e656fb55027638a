"""`statevisor demo` as a user runs it: every promise kept, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statevisor.api.demo.report import CHECKS

_DEMO = [sys.executable, "-P", "-m", "statevisor.api", "demo", "--json"]


def begin(folder: Path) -> subprocess.Popen[str]:
    """The demonstration with its temporary folder inside `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(_DEMO, env=environment, stdout=subprocess.PIPE, text=True)


def servers_of(folder: Path) -> list[int]:
    """Processes whose command line names a path in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdecimal() and str(folder).encode() in command:
            found.append(int(entry.name))
    return found


@pytest.mark.crash
def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    running = begin(tmp_path)
    out, _ = running.communicate(timeout=280)
    report = json.loads(out)

    broken = {name: c["detail"] for name, c in report["checks"].items() if not c["ok"]}
    assert (running.returncode, report["ok"], broken) == (0, True, {})
    assert set(report["checks"]) == set(CHECKS)
    assert report["timings_ms"]["total"] > report["timings_ms"]["boot"] > 0
    assert list(tmp_path.iterdir()) == []
    assert servers_of(tmp_path) == []


def test_a_demo_that_is_ended_takes_its_server_along(tmp_path: Path) -> None:
    running = begin(tmp_path)
    deadline = time.monotonic() + 120
    while not servers_of(tmp_path):
        assert running.poll() is None, "it ended before it began"
        assert time.monotonic() < deadline
        time.sleep(0.05)

    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)

    assert running.returncode == 128 + signal.SIGTERM
    assert servers_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
