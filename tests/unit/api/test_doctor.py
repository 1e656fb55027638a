"""The doctor tells what is wrong, changes nothing, and does not need torch."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from statevisor.api import doctor
from statevisor.api.cli.main import main
from statevisor.api.doctor import Check, State, examine
from statevisor.store.db import FolderLock, migrate


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def found(data: Path, *, host: str = "127.0.0.1", port: int = 0) -> dict[str, Check]:
    return {check.name: check for check in examine(data, host, port)}


def test_a_fit_machine_has_no_failures_and_is_left_as_it_is(tmp_path: Path) -> None:
    checks = found(tmp_path / "data")

    assert [c for c in checks.values() if c.state is State.FAIL] == []
    assert "will be made" in checks["data"].detail
    assert list(tmp_path.iterdir()) == []
    assert {"python", "torch", "gpu", "data", "disk", "port"} == set(checks)


def test_a_folder_with_a_catalog(tmp_path: Path) -> None:
    migrate(tmp_path)
    before = sorted(tmp_path.iterdir())

    checks = found(tmp_path)

    assert checks["lock"].state is checks["catalog"].state is State.OK
    assert "schema" in checks["catalog"].detail
    assert sorted(tmp_path.iterdir()) == before


def test_a_server_that_holds_the_folder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path).acquire()
    try:
        check = found(tmp_path)["lock"]
    finally:
        lock.release()

    assert (check.state, str(os.getpid()) in check.detail) == (State.WARN, True)


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = found(tmp_path, port=server.getsockname()[1])["port"]

    assert check.state is State.WARN
    assert found(tmp_path, host="192.0.2.1")["port"].state is State.FAIL


def test_images_without_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "00000001.slab").touch()

    assert found(tmp_path)["catalog"].state is State.FAIL


def test_a_catalog_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"nothing" * 1000)

    assert found(tmp_path)["catalog"].state is State.FAIL


def test_a_catalog_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(tmp_path)
    monkeypatch.setattr("statevisor.migrations.run.head", lambda: "9999")

    assert found(tmp_path)["catalog"].state is State.WARN


@pytest.mark.parametrize(("free", "state"), [(1 << 20, State.FAIL), (1 << 30, State.WARN)])
def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: State
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free * 2, free, free))

    assert found(tmp_path)["disk"].state is state


def test_a_disk_that_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(doctor.os, "fsync", fail)

    assert found(tmp_path)["data"].state is State.FAIL


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").touch()

    assert found(tmp_path / "data")["data"].state is State.FAIL


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)

    assert found(tmp_path)["torch"].state is State.FAIL


def test_every_problem_has_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    checks = found(tmp_path / "data", host="192.0.2.1").values()

    assert all(check.advice for check in checks if check.state is not State.OK)


def test_deep_tries_a_device(tmp_path: Path) -> None:
    devices = [c for c in examine(tmp_path, "127.0.0.1", 0, deep=True) if c.name == "device"]

    assert devices[0].state is State.OK
    assert devices[0].detail.startswith("cpu, torch")


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom statevisor.api.__main__ import main\n"
        f"main(['doctor', '--port', '0', '--data', {str(tmp_path)!r}])\n"
        "assert 'torch' not in sys.modules and 'statevisor.guests' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True)


def test_the_command_ends_with_one_when_something_fails(tmp_path: Path, capsys: Any) -> None:
    assert main(["doctor", "--port", "0", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("ok    python")
    (tmp_path / "file").touch()
    assert main(["doctor", "--port", "0", "--data", str(tmp_path / "file"), "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out) if row["state"] == "fail"] == ["data"]
    assert "error (unfit): not fit to serve: data" in err
    assert "next: Do what stands behind `next`" in err


@pytest.mark.parametrize(
    ("words", "environment", "port"),
    [
        ((), {}, "8000"),
        ((), {"STATEVISOR_URL": "http://127.0.0.1:8123"}, "8123"),
        ((), {"STATEVISOR_URL": "http://elsewhere"}, "8000"),
        ((), {"STATEVISOR_URL": "http://x:8123", "STATEVISOR_PORT": "8124"}, "8124"),
        (("--port", "8125"), {"STATEVISOR_URL": "http://x:1", "STATEVISOR_PORT": "2"}, "8125"),
    ],
)
def test_the_port_is_the_one_that_commands_would_use(
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    environment: dict[str, str],
    port: str,
) -> None:
    for name in ("STATEVISOR_URL", "STATEVISOR_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STATEVISOR_DATA", str(tmp_path))

    main(["doctor", *words, "-o", "json"])

    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["port"]["detail"].startswith(f"127.0.0.1:{port} ")
    assert rows["data"]["detail"].startswith(str(tmp_path))


def test_an_address_that_is_none_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEVISOR_URL", "http://127.0.0.1:99999")

    assert main(["doctor"]) == 2
