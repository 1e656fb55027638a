"""A live view of a server: rates, tiers and the actors that moved last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statevisor.api.cli.client import Client, path
from statevisor.api.cli.output import cell
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.units import age, size

if TYPE_CHECKING:
    from rich.console import RenderableType

_ROWS = 30
_COLUMNS = (
    ("NAME", lambda a: a["name"]),
    ("STATUS", lambda a: a["status"]),
    ("TIER", lambda a: a["tier"]),
    ("POSITION", lambda a: a["position"]),
    ("HEAD", lambda a: a["head"]),
    ("CHANGED", lambda a: age(a["updated_at"])),
)
_TOKENS = "statevisor_generation_tokens_total"
_PROMPT = "statevisor_prompt_tokens_total"
_STYLES = {"running": "green", "hibernated": "dim", "quarantined": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the server said at one moment."""

    at: float  #: seconds, monotonic
    actors: Sequence[Mapping[str, Any]]
    tiers: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float]

    def rate(self, name: str, before: Sample | None) -> float | None:
        """Growth of a counter per second since an earlier sample; None without one."""
        if before is None or self.at <= before.at:
            return None
        return (self.metrics.get(name, 0.0) - before.metrics.get(name, 0.0)) / (self.at - before.at)


def take(client: Client) -> Sample:
    """Ask the server once."""
    actors = sorted(
        client.pages(path("actors")), key=lambda actor: str(actor["updated_at"]), reverse=True
    )
    return Sample(
        actors=actors,
        tiers=client.get(path("tiers"))["data"],
        metrics=totals(client.text("/metrics")),
        at=time.monotonic(),
    )


def totals(exposition: str) -> dict[str, float]:
    """The metrics of a Prometheus text, summed over their labels."""
    sums: dict[str, float] = {}
    for line in exposition.splitlines():
        if line and not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            # What follows the labels (or the name) is the value, then perhaps a time stamp.
            rest = line.rpartition("}")[2] if "{" in line else line.removeprefix(name)
            sums[name] = sums.get(name, 0.0) + float(rest.split()[0])
    return sums


def frame(now: Sample, before: Sample | None) -> RenderableType:
    """One picture of the server."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts: dict[str, int] = {}
    for actor in now.actors:
        counts[actor["status"]] = counts.get(actor["status"], 0) + 1
    rates = [
        f"{label} {'-' if rate is None else f'{rate:,.0f}'} tok/s"
        for label, rate in (
            ("generated", now.rate(_TOKENS, before)),
            ("read", now.rate(_PROMPT, before)),
        )
    ]
    head = Text(
        f"{len(now.actors)} actors ("
        + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        + ")   "
        + "   ".join(rates)
    )
    places = Table(box=None, pad_edge=False)
    for heading in ("TIER", "ACTORS", "SLOTS", "USED", "CAPACITY"):
        places.add_column(heading)
    for tier in now.tiers:
        slots = tier["slots"]
        places.add_row(
            tier["tier"],
            str(tier["actors"]),
            f"{slots['used']}/{slots['capacity']}" if slots else "-",
            cell(size(tier["used_bytes"])),
            cell(size(tier["capacity_bytes"])),
        )
    rows = Table(box=None, pad_edge=False)
    for heading, _ in _COLUMNS:
        rows.add_column(heading, overflow="ellipsis", no_wrap=True)
    for actor in now.actors[:_ROWS]:
        rows.add_row(
            *(cell(read(actor)) for _, read in _COLUMNS), style=_STYLES.get(actor["status"])
        )
    return Group(head, Text(), places, Text(), rows)


def top(
    remote: Remote,
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between pictures.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One picture, then end.")] = False,
) -> None:
    """Watch a server: rates, tiers, the actors that moved last. Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    before, now = None, take(remote.client)
    if once:
        Console().print(frame(now, None))
        return
    with Live(frame(now, None), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            before, now = now, take(remote.client)
            live.update(frame(now, before), refresh=True)


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    command(app, "top")(top)
