"""A restore that is killed anywhere leaves nothing, or what the next restore takes away."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statevisor.hypervisor.commands import Backup

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("housekeeping", HERE / "housekeeping_child.py")
assert spec is not None
assert spec.loader is not None
housekeeping = importlib.util.module_from_spec(spec)
spec.loader.exec_module(housekeeping)

pytestmark = pytest.mark.crash


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a backup."""

    async def fill() -> None:
        async with housekeeping.running(tmp_path / "data") as (visor, _, _):
            await housekeeping.populate(visor)
            await visor.backup(Backup(target=str(tmp_path / "copy")))

    asyncio.run(fill())
    return tmp_path


def kills(folder: Path, *words: str, stride: int = 1) -> Any:
    script = HERE / "restore_child.py"
    command = [sys.executable, "-P", str(script), str(folder), str(stride), *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_killed_restore_has_not_been_or_is_done(folder: Path) -> None:
    told = kills(folder, stride=3)
    assert told["faults"] == []
    assert told["killed"] > 30


def test_a_restore_that_clears_what_another_left_can_be_killed_too(folder: Path) -> None:
    told = kills(folder, "twice", stride=11)
    assert told["faults"] == []
    assert told["killed"] > 10


def test_a_restore_that_does_not_know_what_it_left_is_found(folder: Path) -> None:
    assert "ended with 4" in kills(folder, "refuses")["faults"][0]


def test_a_folder_that_has_its_name_too_early_is_found(folder: Path) -> None:
    assert "not whole" in kills(folder, "early")["faults"][0]
