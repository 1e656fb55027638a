"""`statevisor bench`: what this machine does with this program, measured now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Scratch = Annotated[
    Path | None, typer.Option(help="Where to make the data folder: the disk that is measured.")
]
Json = Annotated[bool, typer.Option("--json", help="Only one object with every figure.")]


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Print a report as one object, or one `path: value` a line."""
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    for name, value in _leaves(report):
        typer.echo(f"{name:<48} {value}")


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{above}{key}.")
        else:
            yield f"{above}{key}", inner


def lineage(
    *,
    versions: Annotated[int, typer.Option(min=100, help="Versions of the history.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Questions of each kind.")] = 300,
    statistics: Annotated[
        bool, typer.Option(help="Let the database gather what its planner asks for.")
    ] = False,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """Questions about a large history, in the process and over HTTP."""
    from statevisor.api.bench.lineage import run

    show(run(versions, rounds, statistics=statistics, scratch=scratch), as_json)


def fork(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Forks of each kind.")] = 300,
    image_bytes: Annotated[
        int, typer.Option(min=1, help="An image's size, to hold the rows of 1,000 forks against.")
    ] = 6_490_112,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """Forks: by the catalog's size, by the history's length, a thousand at once, over HTTP."""
    from statevisor.api.bench.fork import run

    show(run(rounds, image_bytes=image_bytes, scratch=scratch), as_json)


def start(
    *,
    actors: Annotated[int, typer.Option(min=1000, help="Actors of the folder.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each folder.")] = 3,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """From opening a folder of very many actors to taking commands; memory of each actor."""
    from statevisor.api.bench.start import run

    show(run(actors, rounds=rounds, scratch=scratch), as_json)


def history(
    *,
    tokens: Annotated[int, typer.Option(min=2000, help="Of the long history.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Of each operation.")] = 200,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """What an actor with a very long history costs, beside one with a short history."""
    from statevisor.api.bench.history import run

    show(run(tokens, rounds, scratch=scratch), as_json)


def tiers(
    *,
    rounds: Annotated[int, typer.Option(min=2, help="Moves of each kind.")] = 40,
    row_bytes: Annotated[
        int, typer.Option(min=1 << 16, max=1 << 30, help="Size of a state; a multiple of 4096.")
    ] = 8 << 20,
    actors: Annotated[int, typer.Option(min=0, help="Of the crowd; 0: none.")] = 10_000,
    host_bytes: Annotated[int, typer.Option(min=0, help="Host tier of the crowd.")] = 256 << 20,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """Moves between tiers beside the disk's own times; memory under a crowd of actors."""
    from statevisor.api.bench.tiers import run

    report = run(rounds, row_bytes=row_bytes, actors=actors, host_bytes=host_bytes, scratch=scratch)
    show(report, as_json)


def decode(
    *,
    geometry: Annotated[
        str, typer.Option(help="demo, 191m, 1.5b, 2.9b or 7.2b; weights are random.")
    ] = "demo",
    batch: Annotated[str, typer.Option(help="Actors at once, by commas.")] = "1,8,32,64",
    steps: Annotated[int, typer.Option(min=2, help="Steps of every actor to measure.")] = 100,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 is off.")] = 0,
    state_dtype: Annotated[str, typer.Option(help="F32 or F16.")] = "F32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    durability: Annotated[str, typer.Option(help="sync or async.")] = "sync",
    mode: Annotated[str, typer.Option(help="exact, fast, or both and what exactness costs.")] = (
        "exact"
    ),
    prefill: Annotated[
        str, typer.Option(help="Prompts to absorb as well, rows x tokens: 1x512,32x32.")
    ] = "",
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """Tokens per second of the whole engine loop: steps, draws, text, journal, output gate."""
    from statevisor.api.bench.decode import Plan, run
    from statevisor.hypervisor.sampling import SamplerSettings

    plan = Plan(
        geometry=geometry,
        batches=counts(batch),
        steps=steps,
        settings=SamplerSettings(temperature=temperature, top_p=top_p, top_k=top_k),
        state_dtype=state_dtype,
        device=device,
        durability=durability,
        modes=("exact", "fast") if mode == "both" else (mode,),
        prompts=shapes(prefill),
    )
    show(run(plan, scratch), as_json)


def moves(
    *,
    geometry: Annotated[
        str, typer.Option(help="demo, 191m, 1.5b, 2.9b or 7.2b; weights are random.")
    ] = "demo",
    slots: Annotated[int, typer.Option(min=4, help="Half of them decode.")] = 16,
    parts: Annotated[str, typer.Option(help="What to measure, by commas; empty: all.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Moves of one actor.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Before each move of many.")] = 100,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of the long prompt.")] = 16_384,
    arrivals: Annotated[int, typer.Option(min=4, help="Turns at random.")] = 1_000,
    step_tokens: Annotated[int, typer.Option(min=1, help="Budget of one step.")] = 512,
    state_dtype: Annotated[str, typer.Option(help="F32 or F16.")] = "F32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    durability: Annotated[str, typer.Option(help="sync or async.")] = "sync",
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:
    """What moves between tiers, forks and long prompts cost beside decoding; part by part."""
    from statevisor.api.bench.moves import PARTS, run
    from statevisor.api.bench.scene import Plan

    plan = Plan(
        geometry=geometry,
        state_dtype=state_dtype,
        device=device,
        slots=slots,
        parts=[part.strip() for part in parts.split(",")] if parts else tuple(PARTS),
        rounds=rounds,
        steps=steps,
        prompt_tokens=prompt_tokens,
        arrivals=arrivals,
        step_tokens=step_tokens,
        durability=durability,
    )

    def told(part: str, figures: Mapping[str, Any]) -> None:
        typer.echo(json.dumps({"part": part, **figures}), err=True)

    report = run(plan, told, scratch)
    show(report if as_json else {k: v for k, v in report.items() if k != "samples"}, as_json)


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Rows and tokens between commas. Raises: InvalidRequest."""
    from statevisor.hypervisor.errors import InvalidRequest

    found = []
    for part in text.split(",") if text else ():
        rows, _, tokens = part.strip().partition("x")
        if not (rows.isdecimal() and tokens.isdecimal() and int(rows) and int(tokens)):
            raise InvalidRequest(f"{text!r} is not a list of sizes", hint="Such as 1x512,32x32.")
        found.append((int(rows), int(tokens)))
    return tuple(found)


def counts(text: str) -> tuple[int, ...]:
    """Positive numbers between commas. Raises: InvalidRequest."""
    from statevisor.hypervisor.errors import InvalidRequest

    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InvalidRequest(f"{text!r} is not a list of counts", hint="Such as 1,8,32.")
    return tuple(map(int, parts))


def register(app: typer.Typer) -> None:
    """Add this file's group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Measure this program on this machine.")
    app.add_typer(group, name="bench")
    group.command("lineage")(lineage)
    group.command("fork")(fork)
    group.command("start")(start)
    group.command("tiers")(tiers)
    group.command("history")(history)
    group.command("decode")(decode)
    group.command("moves")(moves)
