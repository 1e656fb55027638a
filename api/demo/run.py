"""The whole demonstration: a server of its own in a temporary folder, always cleaned up."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from statevisor.api.demo import afterlife
from statevisor.api.demo.life import Life
from statevisor.api.demo.machine import Machine
from statevisor.api.demo.report import Report
from statevisor.api.demo.screen import Screen
from statevisor.hypervisor.errors import StatevisorError

#: Alice, her twin, eight children and seven neighbours, with some room. The embedded guest is too
#: small to gain from a second thread, and two threads wait for each other where cores are shared.
_FLAGS = ("--slots", "20", "--threads", "1")


def run(screen: Screen, flags: Sequence[str] = _FLAGS) -> Report:
    """Live the story and report; an error on the way ends the story and is in the report."""
    report = Report()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="statevisor-demo-") as folder:
        machine = Machine(Path(folder), flags)
        try:
            live(machine, report, screen)
        except StatevisorError as error:
            report.stopped = f"{error.code}: {error.detail}"
            if error.code == StatevisorError.code:
                report.stopped += f"\n{machine.last_words()}"
        finally:
            machine.stop()
    report.timings_ms["total"] = round((time.perf_counter() - begun) * 1000, 3)
    screen.end(report)
    return report


def live(machine: Machine, report: Report, screen: Screen) -> None:
    """The story from the first start of the server to the family tree."""
    screen.act("A server starts in a temporary folder.")
    with report.timed("boot"):
        client = machine.start()
    life = Life(client, report, screen)
    life.begin()
    life.read_own_words()
    life.crowd()
    life.fork()
    life.change()
    life.sleep()
    afterlife.crash(life, machine)
    afterlife.back(life)
    afterlife.carry(life)
    afterlife.family(life)
