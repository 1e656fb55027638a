"""The story for people: every verdict is shown, and no text of a model moves the cursor."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from statevisor.api.demo.report import CHECKS, Check, Report
from statevisor.api.demo.screen import Terminal


def shown(report: Report | None = None) -> tuple[Terminal, StringIO]:
    out = StringIO()
    return Terminal(Console(file=out, width=200, highlight=False)), out


def test_a_verdict_says_what_was_compared() -> None:
    screen, out = shown()
    screen.verdict("rollback_exact", Check(ok=True, detail="to alice@4"))
    screen.verdict("damage_refused", Check(ok=False, detail="accepted"))

    kept, broken = out.getvalue().splitlines()
    assert kept.strip() == f"✓ {CHECKS['rollback_exact']}  (to alice@4)"
    assert broken.strip().startswith("✗")


def test_a_models_bytes_stay_on_their_line() -> None:
    screen, out = shown()
    screen.spoke("alice", "Who?\nWhen?", "a\x1b[2Jb\rc\n")

    assert out.getvalue() == "  alice: Who? / When? a·[2Jb·c\n"


def test_the_end_counts_and_names_why_it_ended_early() -> None:
    screen, out = shown()
    report = Report(stopped="unavailable: gone")
    report.decide("rollback_exact", {"equal": True}, "x")
    screen.end(report)

    assert "The story ended early: unavailable: gone" in out.getvalue()
    assert f"1 of {len(CHECKS)} promises kept" in out.getvalue()
