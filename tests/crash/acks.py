"""What a life asks and what it is told, one line each, in a file that outlives the process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from statevisor.hypervisor.errors import StatevisorError

from disk import Call  # isort: skip  # beside this file


class Acks:
    """One line for everything asked and everything told, in a file that outlives the process."""

    def __init__(self, path: Path, log: Any = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log = log  #: of recorder.py
        if log is not None:
            log.note(Call.OPEN, self._fd, 1, bytes(path))

    def ask(self, op: str, **more: Any) -> None:
        self._write({"is": "ask", "op": op, **more})

    def ack(self, op: str, **more: Any) -> None:
        self._write({"is": "ack", "op": op, **more})

    def refused(self, error: StatevisorError) -> None:
        self._write({"is": "refused", "why": f"{error.code}: {error.detail}"})

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        if self._log is None:
            os.write(self._fd, line)
            return
        with self._log.lock:
            self._log.note(Call.WRITE, self._fd, os.fstat(self._fd).st_size, line)
            os.write(self._fd, line)
