"""A server as a child process over one data folder, to be started, killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from statevisor.api.cli.client import Client
from statevisor.hypervisor.errors import Unavailable

_BOOT_S = 180.0
_STOP_S = 30.0
_POLL_S = 0.05


class Machine:
    """One server at a time; its log and its data outlive it in `folder`."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        self._log = folder / "server.log"
        self._announced = folder / "ready.json"
        self._flags = ("--data", str(folder / "data"), "--port", "0", *flags)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Client:
        """Start a server and wait until it is ready. Raises: Unavailable, with its last words."""
        self._announced.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "statevisor.api", "serve", *self._flags]
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C reaches the demonstration, which ends the server itself.
            self._child = subprocess.Popen(
                [*command, "--port-file", str(self._announced)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _BOOT_S
        client: Client | None = None
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                break
            client = client or self._address()
            if client and _ready(client):
                return client
            time.sleep(_POLL_S)
        self.kill()
        raise Unavailable(
            f"the server did not start:\n{self.last_words()}", hint="See the log above."
        )

    @property
    def pid(self) -> int | None:
        """Of the server that runs now."""
        return None if self._child is None else self._child.pid

    def kill(self) -> None:
        """End it as a power cut would: no signal it could handle."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._child = None

    def _address(self) -> Client | None:
        """Where the server listens, once it has said so."""
        try:
            return Client(json.loads(self._announced.read_text())["url"])
        except (FileNotFoundError, ValueError):
            return None

    def last_words(self) -> str:
        """The end of the server's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def _ready(client: Client) -> bool:
    try:
        client.text("/ready")
    except Unavailable:
        return False
    return True
