"""Whole servers in processes of their own, over HTTP, whose system calls can be made to fail."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

EX_IOERR = 74
HERE = Path(__file__).parent
#: One row of the toy is 80 bytes.
_FLAGS = ("--port", "0", "--host-bytes", "800", "--log-level", "warning")
TALK = {"prompt": "and?", "max_tokens": 8, "temperature": 1.0, "ignore_eos": True}


class Ended(Exception):
    """The server has ended, or let go of the connection."""


class Server:
    """One process over one data folder."""

    def __init__(
        self,
        data: Path,
        library: Path,
        extra: tuple[str, ...],
        fault: tuple[str, int, str] | None,
    ) -> None:
        self.data = data
        self._control = data.with_name(f"{data.name}.fault")
        self.heal()
        if fault is not None:
            self.fault(*fault)
        port_file = data.with_name(f"{data.name}.port")
        port_file.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "STATEVISOR_FAULT_FILE": str(self._control),
        }
        command = [sys.executable, str(HERE / "toy_server.py"), "--data", str(data), *_FLAGS]
        self.process = subprocess.Popen(
            [*command, "--port-file", str(port_file), *extra],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not port_file.exists() and self.process.poll() is None:
            time.sleep(0.01)
        self.address = ""
        if port_file.exists():
            self.address = json.loads(port_file.read_text())["url"].removeprefix("http://")

    def ready(self) -> Server:
        """Wait until it takes work. Raises: AssertionError, if it ends instead."""
        while self.process.poll() is None:
            try:
                if self.ask("GET", "/ready")[0] == 200:
                    return self
            except Ended:
                pass
            time.sleep(0.01)
        raise AssertionError(self.process.communicate()[0])

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and answer. Raises: Ended."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            content = None if body is None else json.dumps(body)
            sent = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Ended(repr(error)) from error
        finally:
            connection.close()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(text) if "json" in kind else text

    def stream(self, path: str, body: Any) -> tuple[Any, Any]:
        """A connection and its answer, to be read while it comes."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
        return connection, connection.getresponse()

    def good(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request that must succeed."""
        status, value = self.ask(method, path, body)
        assert status < 300, value
        return value

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and code of a request that must be refused."""
        status, value = self.ask(method, path, body)
        assert status >= 400, value
        return status, value["code"]

    def dies_over(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """A request that is never answered."""
        with pytest.raises(Ended):
            self.ask(method, path, body, headers)

    def ended_with(self, *words: str) -> None:
        """The process has ended by itself, and has said why in one line."""
        code, said = self.end()
        assert code == EX_IOERR, said
        assert said.count("the process ends") == 1, said
        for word in words:
            assert word in said

    def create(self, *names: str) -> None:
        for name in names:
            self.good("POST", "/v1/actors", {"name": name, "prompt": "once", "seed": 7})

    def say(self, name: str) -> list[int]:
        said: list[int] = self.good("POST", f"/v1/actors/{name}/generate", TALK)["token_ids"]
        return said

    def heard(self, name: str) -> list[int]:
        """The committed transcript."""
        tokens: list[int] = self.good("GET", f"/v1/actors/{name}/transcript")["token_ids"]
        return tokens

    def sleep(self, *names: str) -> None:
        for name in names:
            self.good("POST", f"/v1/actors/{name}/hibernate", {"tier": "nvme"})

    def metric(self, name: str) -> float:
        text = self.good("GET", "/metrics").decode()
        lines = [line for line in text.splitlines() if line.startswith(f"statevisor_{name}")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def fault(self, call: str, error: int, end: str) -> None:
        """Let a kind of system call on some files fail from now on: see faults.c."""
        draft = self._control.with_suffix(".draft")
        draft.write_text(f"{call} {error} {end}")
        draft.replace(self._control)

    def heal(self) -> None:
        self._control.unlink(missing_ok=True)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """Wait for its own end; its exit code and what it said."""
        said = self.process.communicate(timeout=60)[0]
        return self.process.returncode, said

    def stop(self) -> tuple[int, str]:
        """As a signal does."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()


@pytest.fixture(scope="session")
def library() -> Path:
    """The faults, compiled."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang): system calls cannot be made to fail")
    made = Path(tempfile.mkdtemp()) / "faults.so"
    source = str(HERE / "faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), source, "-ldl"], check=True)
    return made


Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path, library: Path) -> Iterator[Serve]:
    """Starts servers over one folder; what still runs at the end is killed."""
    made: list[Server] = []

    def start(
        *extra: str,
        data: str = "data",
        ready: bool = True,
        fault: tuple[str, int, str] | None = None,
    ) -> Server:
        made.append(Server(tmp_path / data, library, extra, fault))
        return made[-1].ready() if ready else made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.kill()
