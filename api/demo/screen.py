"""The demonstration for people: the story, the children's endings, the tree, each verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rich.console import Console
from rich.text import Text

from statevisor.api.demo.report import CHECKS, Check, Report


class Screen(Protocol):
    """Whoever is told what happens."""

    def act(self, title: str) -> None:
        """A new part of the story begins."""
        ...

    def told(self, text: str) -> None:
        """An actor was given a text."""
        ...

    def spoke(self, name: str, asked: str, answer: str) -> None:
        """An actor answered."""
        ...

    def drew(self, lines: Iterable[str]) -> None:
        """Something drawn with lines."""
        ...

    def verdict(self, name: str, check: Check) -> None:
        """A promise was decided."""
        ...

    def end(self, report: Report) -> None:
        """The story is over."""
        ...


class Silent:
    """Shows nothing; for `--json`."""

    def act(self, title: str) -> None: ...
    def told(self, text: str) -> None: ...
    def spoke(self, name: str, asked: str, answer: str) -> None: ...
    def drew(self, lines: Iterable[str]) -> None: ...
    def verdict(self, name: str, check: Check) -> None: ...
    def end(self, report: Report) -> None: ...


def _plain(text: str) -> str:
    """A text on one line, without what would move the cursor."""
    words = " / ".join(text.split("\n")).strip(" /")
    return "".join(letter if letter.isprintable() else "·" for letter in words)


class Terminal:
    """Shows the story as it happens."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def act(self, title: str) -> None:
        self._console.print()
        self._console.print(Text(title, style="bold cyan"))

    def told(self, text: str) -> None:
        self._console.print(Text(_plain(text), style="italic"))

    def spoke(self, name: str, asked: str, answer: str) -> None:
        line = Text(f"  {name}: ", style="magenta")
        line.append(f"{_plain(asked)} ", style="dim")
        line.append(_plain(answer) or "(nothing)", style="bold")
        self._console.print(line)

    def drew(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(Text("  " + line, style="blue"), soft_wrap=True)

    def verdict(self, name: str, check: Check) -> None:
        line = Text("  ✓ " if check.ok else "  ✗ ", style="green" if check.ok else "bold red")
        line.append(CHECKS[name], style="" if check.ok else "red")
        line.append(f"  ({check.detail})", style="dim")
        self._console.print(line)

    def end(self, report: Report) -> None:
        kept = sum(check.ok for check in report.checks.values())
        self._console.print()
        if report.stopped:
            self._console.print(Text(f"The story ended early: {report.stopped}", style="bold red"))
        summary = f"{kept} of {len(CHECKS)} promises kept"
        self._console.print(Text(summary, style="bold green" if report.ok else "bold red"))
        times = "  ".join(f"{name} {ms:.0f} ms" for name, ms in report.timings_ms.items())
        self._console.print(Text(times, style="dim"))
