"""Real runs with every system call on their files written down, by a library compiled here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from statevisor.store.db import migrate

from disk import Disk, Entry, entries  # isort: skip  # beside this file

SOURCE = Path(__file__).with_name("recorder.c")
ACKS = "acks"


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def library() -> Path:
    """The recorder, compiled once for each version of its source. Raises: CalledProcessError."""
    found = compiler()
    assert found is not None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    cache = Path(tempfile.gettempdir()) / f"statevisor-recorder-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    assert cache.stat().st_uid == os.getuid(), f"{cache} is somebody else's"
    made = cache / f"{digest}.so"
    if not made.exists():
        fresh = cache / f"{digest}.{os.getpid()}"
        flags = ["-shared", "-fPIC", "-O1", "-o", str(fresh), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run([found, *flags], check=True, capture_output=True)
        fresh.rename(made)
    return made


class Recording:
    """Lives of one folder, one after the other, as one log."""

    def __init__(self, base: Path, *, compiled: bool = True) -> None:
        """`compiled`: by recorder.c; else by recorder.py."""
        self.root = (base / "root").resolve()  #: what is recorded: data and acks
        self.log: list[Entry] = []
        self._base = base
        self._compiled = compiled
        (self.root / "data").mkdir(parents=True)
        if not compiled:
            self._make()
        self._before = {
            path: path.read_bytes() if path.is_file() else None
            for path in sorted(self.root.rglob("*"))
        }

    def _make(self) -> None:
        """An empty catalog and folder of images: recorder.py does not see how they are made."""
        migrate(self.root / "data")
        (self.root / "data" / "images").mkdir()

    def live(self, number: int, *, stop: int | None = None, **order: Any) -> None:
        """One life in a process of its own, to its end or killed at so many calls.

        `order`: as `life.live` takes it, with `mutant`. Raises: RuntimeError, if it ends otherwise.
        """
        assert self._compiled or stop is None
        log = self._base / f"log-{number}"
        order = {"guest": "toy"} | order
        order |= {
            "folder": str(self.root / "data"),
            "acks": str(self.root / ACKS),
            "number": number,
        }
        environment = dict(os.environ)
        if self._compiled:
            environment["LD_PRELOAD"] = str(library())
            environment["STATEVISOR_RECORD_FOLDER"] = str(self.root)
            environment["STATEVISOR_RECORD_LOG"] = str(log)
            environment["STATEVISOR_RECORD_STOP"] = str(stop or 0)
        else:
            order["record"] = str(log)
        life = [sys.executable, str(Path(__file__).with_name("life.py")), json.dumps(order)]
        done = subprocess.run(
            life, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != (0 if stop is None else -signal.SIGKILL):
            raise RuntimeError(f"the life ended with {done.returncode}: {done.stderr[-2000:]}")
        self.log += entries(log)

    def disk(self) -> Disk:
        """The disk as it was when the first life began."""
        disk = Disk(self.root)
        for path, data in self._before.items():
            disk.adopt(str(path), data)
        return disk


def differences(recording: Recording) -> list[str]:
    """Files that the recording does not explain: what was played against what lies there.

    Empty means that no call that changed a byte, a length or a name was missed.
    """
    disk = recording.disk()
    for entry in recording.log:
        disk.play(entry)
    played = {name: data for name, data in disk.whole().items() if not name.endswith("-shm")}
    real = {
        str(path.relative_to(recording.root)): path.read_bytes()
        for path in sorted(recording.root.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }
    names = sorted(played.keys() ^ real.keys())
    return names + sorted(
        name for name in played.keys() & real.keys() if played[name] != real[name]
    )
