"""`serve`: flags become settings; the server itself is another module's business."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from statevisor.api.cli.main import main


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The garbage collector works again after a start."""
    yield
    gc.enable()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that a server was started with."""
    settings: list[Any] = []
    module = ModuleType("statevisor.api.server")
    module.run = settings.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "statevisor.api.server", module)
    for name in ("STATEVISOR_URL", "STATEVISOR_TOKEN", "STATEVISOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return settings


def test_flags_become_settings(started: list[Any], tmp_path: Path) -> None:
    words = ["--data", str(tmp_path), "--port", "0", "--slots", "3", "--host-bytes", "2MiB"]

    assert main(["serve", *words, "--set", "mailbox=5", "--durability", "async"]) == 0

    settings = started[0]
    assert (settings.data, settings.port, settings.slots) == (tmp_path, 0, 3)
    assert settings.host_bytes == 2 << 20
    assert settings.mailbox == 5
    assert settings.durability == "async"
    assert settings.model == "demo"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "statevisor.toml"
    file.write_text("port = 1\nslots = 1\nmailbox = 1\n")
    monkeypatch.setenv("STATEVISOR_PORT", "2")
    monkeypatch.setenv("STATEVISOR_SLOTS", "2")

    assert main(["serve", "--config", str(file), "--port", "3"]) == 0

    assert (started[0].port, started[0].slots, started[0].mailbox) == (3, 2, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "no_such_thing=1"],
        ["--set", "slots"],
        ["--slots", "0"],
        ["--durability", "perhaps"],
        ["--config", "/nowhere.toml"],
    ],
)
def test_a_wrong_setting_is_told_before_anything_starts(
    started: list[Any], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert started == []
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_is_collected_while_a_server_is_loaded(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    collects: list[bool] = []
    monkeypatch.setattr(
        sys.modules["statevisor.api.server"], "run", lambda _: collects.append(gc.isenabled())
    )

    assert main(["serve", "--port", "0"]) == 0
    assert collects == [False]
