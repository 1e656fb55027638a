"""What the demonstration found out: a verdict per promise, and how long things took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: Every promise that a whole demonstration decides, in the order of the story.
CHECKS: Mapping[str, str] = {
    "split_invariance": "told at once or in pieces, it is the same state",
    "prefill_equals_decode": "reading its own words gives the state that speaking them gave",
    "batch_invariance": "with neighbours in the batch it says what it says alone",
    "fork_isolation": "eight children change neither each other nor their parent",
    "mutation_proved": "a changed state answers otherwise, and the change can be derived again",
    "hibernate_host_exact": "asleep in host memory and back, nothing changed",
    "hibernate_nvme_exact": "asleep on disk and back, nothing changed",
    "kill_loses_no_token": "kill -9 loses no token that was streamed",
    "restart_continues_as_twin": "after the crash it goes on as if nothing had happened",
    "rollback_exact": "taken back, it says again what it said then",
    "export_import_equal": "a state goes to a file and back byte for byte",
    "damage_refused": "one flipped bit in that file is found",
    "lineage_path": "the tree knows who came from whom",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise: kept or not, and what was compared."""

    ok: bool
    detail: str


@dataclass(slots=True, kw_only=True)
class Report:
    """Collects verdicts; a promise without one counts as broken."""

    checks: dict[str, Check] = field(default_factory=dict)
    timings_ms: dict[str, float] = field(default_factory=dict)
    stopped: str | None = None  #: why the story ended early

    @property
    def ok(self) -> bool:
        """Whether every promise was decided and kept."""
        return self.stopped is None and all(
            name in self.checks and self.checks[name].ok for name in CHECKS
        )

    def decide(self, name: str, facts: Mapping[str, bool], detail: str) -> None:
        """Record a verdict: kept if every fact holds; the detail names those that do not."""
        broken = [fact for fact, holds in facts.items() if not holds]
        if broken:
            detail = f"NOT {', NOT '.join(broken)}; {detail}"
        self.checks[name] = Check(ok=not broken and bool(facts), detail=detail)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure the body."""
        begun = time.perf_counter()
        yield
        self.timings_ms[name] = round((time.perf_counter() - begun) * 1000, 3)

    def as_json(self) -> dict[str, Any]:
        """The object that `demo --json` prints."""
        missing = Check(ok=False, detail=f"not reached: {self.stopped or 'the story ended early'}")
        found = {name: self.checks.get(name, missing) for name in CHECKS}
        return {
            "ok": self.ok,
            "checks": {name: {"ok": c.ok, "detail": c.detail} for name, c in found.items()},
            "timings_ms": self.timings_ms,
        }
