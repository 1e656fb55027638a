"""Forks one life per line of its input and ends it; run by run_kill.py and the tests.

A line is an order as `life.live` takes it, with `mutant`, and how it ends: `after_s` (SIGKILL at
that time), `point` (at that call of a file operation or a statement, before or after it; below 0:
the calls are only counted), `statement` (a beginning and n: at the n-th statement that begins so;
with `committed` behind the commit that follows) or `fence` (a second owner takes the folder, see
`overtaken`). The answer is a line: how the process ended, and the calls counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from statevisor.hypervisor.commands import Append
from statevisor.hypervisor.errors import StatevisorError
from statevisor.store import db, prepared, writer
from statevisor.store.files import Files

sys.path.insert(0, str(Path(__file__).parent))
import life  # isort: skip
import mutants  # isort: skip
from acks import Acks  # isort: skip
from images_child import KillingFiles, die  # isort: skip
from worker import Worker  # isort: skip
from world import make_guest, open_world  # isort: skip


class Points:
    """Counts calls and ends the process at one of them."""

    def __init__(self, at: int) -> None:
        self.calls = 0
        self._at = at
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.calls += 1
            if self.calls == self._at:
                die()

    def watch_statements(self) -> None:
        def execute(real: Any, *args: Any, **kwargs: Any) -> Any:
            self()
            result = real(*args, **kwargs)
            self()
            return result

        _wrap_execute(execute)


class Statement:
    """Ends the process at one statement, or behind its commit."""

    def __init__(self, begins: str, left: int, committed: bool) -> None:
        self._begins = begins
        self._left = left
        self._committed = committed
        _wrap_execute(self._execute)

    def _execute(self, real: Any, conn: Any, sql: str, *args: Any, **kwargs: Any) -> Any:
        if sql.startswith(self._begins):
            self._left -= 1
            if not self._left and not self._committed:
                die()
        result = real(conn, sql, *args, **kwargs)
        if sql == "COMMIT" and self._left <= 0:
            die()
        return result


def _wrap_execute(wrapper: Callable[..., Any]) -> None:
    execute = partial(wrapper, prepared.execute)
    for module in (prepared, db, writer):
        module.execute = execute  # type: ignore[attr-defined]


class Unlocked(Files):
    """Two processes of one folder, as on a shared disk whose lock was lost."""

    def lock(self, folder: Path) -> int:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


async def overtaken(order: dict[str, Any]) -> None:
    """An owner at work is overtaken by another, who has the last word; it goes on if it can."""
    folder, acks = Path(order["folder"]), Acks(Path(order["acks"]))
    files = Unlocked()
    old = await open_world(folder, make_guest("toy"), files=files, locked=False)
    worker = Worker(old, acks, random.Random(order["number"]), f"n{order['number']}")
    await worker.create()
    (actor,) = worker._mine

    going = asyncio.create_task(worker.generate(actor, 5000))
    await asyncio.wait([going], timeout=0.05)
    try:
        new = await open_world(folder, make_guest("toy"), files=files, locked=False)
        acks.ack("overtaken")
        await new.visor.append(Append(actor=actor.id, prompt=(1, 2, 3)))
        await asyncio.wait([going], timeout=2)
    except StatevisorError as error:
        acks.refused(error)
    die()


def live(order: dict[str, Any]) -> None:
    if order.get("mutant"):
        mutants.apply(order["mutant"])
    if order.get("fence"):
        asyncio.run(overtaken(order))
    points, files = Points(order.get("point", 0)), None
    if "point" in order:
        points.watch_statements()
        files = KillingFiles(points)
    if "statement" in order:
        Statement(*order["statement"], committed=order.get("committed", False))
    asyncio.run(life.live(order, files))
    if order.get("point", 0) < 0:
        Path(order["acks"]).with_name("calls").write_text(str(points.calls))


def ended(child: int, order: dict[str, Any]) -> int:
    """Wait for a life, and end it if its time has come.

    The time begins with the process, or, with `from_ask`, when it asks for its first operation.
    """
    watch, acks = os.pidfd_open(child), Path(order["acks"])
    over = False
    while order.get("from_ask") and not acks.exists() and not over:
        over = bool(select.select([watch], [], [], 0.005)[0])
    if not over and not select.select([watch], [], [], order.get("after_s", 60))[0]:
        os.kill(child, signal.SIGKILL)
    os.close(watch)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            live(order)
            os._exit(0)
        code = ended(child, order)
        calls = Path(order["acks"]).with_name("calls")
        count = int(calls.read_text()) if calls.exists() else 0
        sys.stdout.write(json.dumps([code, count]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
