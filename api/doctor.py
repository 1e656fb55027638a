"""Is this machine fit to serve, and the data folder fit to be served: one finding a line.

Nothing is changed, and torch is not loaded unless asked for: a doctor must work where that fails.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.store.db import FolderLock, translated
from statevisor.store.fsck import is_lost
from statevisor.store.schema import revision

_LOW_BYTES: Final = 4 << 30
_NO_BYTES: Final = 128 << 20
_GPU_DRIVER: Final = Path("/proc/driver/nvidia/version")
_GIB: Final = 1 << 30


class State(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding and the next step."""

    name: str
    state: State
    detail: str
    advice: str | None = None


def examine(data: Path, host: str, port: int, *, deep: bool = False) -> Iterator[Check]:
    """Every check, in the order in which they matter."""
    yield _python()
    yield _package("torch")
    yield _gpu()
    if deep:
        yield from _devices()
    yield from _folder(data)
    yield _port(host, port)


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, state=State.OK, detail=detail)


def _warn(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, state=State.WARN, detail=detail, advice=advice)


def _fail(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, state=State.FAIL, detail=detail, advice=advice)


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        return _ok("python", found)
    return _fail("python", found, "Use Python 3.11 or 3.12.")


def _package(name: str) -> Check:
    try:
        return _ok(name, version(name))
    except PackageNotFoundError:
        return _fail(name, "not installed", f"Install {name} into this environment.")


def _gpu() -> Check:
    try:
        words = _GPU_DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        return _warn("gpu", "no NVIDIA driver", "Guests run on the CPU; for small models only.")
    return _ok("gpu", words.partition(":")[2].strip() or words)


def _devices() -> Iterator[Check]:
    """What torch itself says; loads it."""
    try:
        from statevisor.guests.device_check import devices
    except (ImportError, OSError) as error:
        yield _fail("device", f"torch cannot be loaded: {error}", "Install torch anew.")
        return
    for one in devices():
        memory = "" if one.total_bytes is None else f", {one.total_bytes / _GIB:.0f} GiB"
        if one.fault is None:
            yield _ok("device", one.name + memory)
        else:
            yield _fail("device", f"{one.name}: {one.fault}", "Look at the driver; then restart.")


def _folder(data: Path) -> Iterator[Check]:
    """The data folder, or what it would be made in."""
    home = data
    while not home.exists() and home != home.parent:
        home = home.parent
    if not home.is_dir():
        yield _fail("data", f"{home} is no folder", "Name another --data folder.")
        return
    made = "" if home == data else ", will be made"
    yield _writes(home, f"{data}{made}")
    yield _room(home)
    if home == data:
        for check in (_lock, _catalog):
            yield check(data)


def _writes(home: Path, text: str) -> Check:
    """Whether a file can be written and made durable."""
    try:
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"statevisor")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        detail = f"{text}: {error.strerror}"
        return _fail("data", detail, "Let this user write there, or name another --data folder.")
    return _ok("data", f"{text}; writes and syncs")


def _room(home: Path) -> Check:
    free = shutil.disk_usage(home).free
    text = f"{free / _GIB:.1f} GiB free"
    if free < _NO_BYTES:
        return _fail("disk", text, "Free room, or name a --data folder on another disk.")
    if free < _LOW_BYTES:
        return _warn("disk", text, "Free room, or run `statevisor admin gc`.")
    return _ok("disk", text)


def _lock(data: Path) -> Check:
    # Looked at only if it is there: taking it would make it.
    if (data / "lock").exists():
        lock = FolderLock(data)
        try:
            lock.acquire()
        except Unavailable as error:
            return _warn("lock", error.detail, "That server is the one to talk to.")
        except OSError as error:
            return _fail("lock", f"{error.strerror}", "Let this user write to the data folder.")
        lock.release()
    return _ok("lock", "no server has the folder")


def _catalog(data: Path) -> Check:
    if is_lost(data):
        text, advice = "there are images but no catalog", "Restore a backup; see `admin fsck`."
        return _fail("catalog", text, advice)
    try:
        with translated():
            known = revision(data)
    except StatevisorError as error:
        return _fail("catalog", error.detail, "Restore a backup; see `admin fsck`.")
    if known.current is None:
        return _ok("catalog", "none yet")
    if known.current == known.head:
        return _ok("catalog", f"schema {known.current}")
    text = f"schema {known.current}, this program has {known.head}"
    return _warn("catalog", text, "A start upgrades an older one; a newer one needs that program.")


def _port(host: str, port: int) -> Check:
    where = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return _warn("port", f"{where} is taken", "Choose another --port, or 0 for any.")
            return _fail("port", f"{where}: {error.strerror}", "Choose another --host.")
    return _ok("port", f"{where} is free")
