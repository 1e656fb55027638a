"""A migration that is killed at any statement leaves the old folder or the new one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def kills(folder: Path, *more: str) -> Any:
    script = Path(__file__).with_name("migration_child.py")
    command = [sys.executable, "-P", str(script), str(folder), *more]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_killed_migration_has_not_been_or_is_done(tmp_path: Path) -> None:
    told = kills(tmp_path)
    assert told["faults"] == []
    assert told["killed"] > 30


def test_control_statements_that_are_committed_apart_are_found(tmp_path: Path) -> None:
    assert kills(tmp_path, "apart")["faults"]
