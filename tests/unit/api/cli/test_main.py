"""The command as a whole: which file holds which command, help, version, completion."""

from __future__ import annotations

import io
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
import typer
from typer.main import get_group

from statevisor.api.cli.main import PARTS, build, main


def names(app: typer.Typer) -> set[str]:
    return set(get_group(app).commands)


@pytest.mark.parametrize("part", PARTS)
def test_each_file_registers_what_the_table_says(part: str) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    import_module(f"statevisor.api.cli.{part}").register(app)

    assert names(app) == set(PARTS[part])


def test_a_command_loads_its_own_file_only() -> None:
    assert names(build("ls")) == set(PARTS["actors"])
    assert names(build("nonsense")) == {name for part in PARTS.values() for name in part}
    assert names(build()) == names(build("--help"))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    out = capsys.readouterr().out
    missing = [name for part in PARTS.values() for name in part if f" {name} " not in out]
    assert missing == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("statevisor")


@pytest.mark.parametrize("word", [name for part in PARTS.values() for name in part])
def test_every_command_explains_itself(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    usage = next(n for n, line in enumerate(lines) if line.startswith("Usage:"))
    assert len(next(line for line in lines[usage + 1 :] if line)) > 10


def test_what_a_terminal_cannot_show_is_left_out(
    server: Any, monkeypatch: pytest.MonkeyPatch, shapes: Any
) -> None:
    server.answer("GET", "/v1/actors", shapes.listing(shapes.actor(labels={"k": "é😀"})))
    narrow = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr("sys.stdout", narrow)

    assert main(["--url", server.url, "ls"]) == 0

    narrow.seek(0)
    assert "k=é?" in narrow.read()
