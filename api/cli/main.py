"""The command `statevisor`: every noun's commands under one name, and one way to fail."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from statevisor.api.cli.faults import exit_code, report
from statevisor.api.cli.output import Output
from statevisor.api.cli.remote import DEFAULT_URL, Defaults
from statevisor.hypervisor.errors import StatevisorError

#: Which file holds which commands. A command loads its own file only: start-up is what one feels.
PARTS: Mapping[str, tuple[str, ...]] = {
    "serve": ("serve",),
    "demo": ("demo",),
    "chat": ("chat",),
    "actors": ("ls", "info", "create", "rm", "pin", "unpin", "rename", "label"),
    "turns": ("append", "generate", "transcript", "cancel"),
    "branches": ("snapshot", "fork", "mutate", "rollback"),
    "versions": ("versions", "tags", "diff", "verify", "export", "import"),
    "provenance": ("search", "head", "reproduce"),
    "lineage": ("lineage", "blame", "is-ancestor", "common-ancestor"),
    "wait": ("wait",),
    "tiers": ("tiers", "hibernate", "resume", "evict"),
    "top": ("top",),
    "model": ("model",),
    "admin": ("admin",),
    "doctor": ("doctor",),
    "bench": ("bench",),
}


def build(first: str | None = None) -> typer.Typer:
    """The application; with the commands of one file if `first` is one of them, else with all."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="A hypervisor for the states of recurrent language models.",
        epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 unavailable.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_defaults)  # with it, one command alone still has a name
    own = [part for part, names in PARTS.items() if first in names]
    for part in own or PARTS:
        import_module(f"statevisor.api.cli.{part}").register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("statevisor"))
        raise typer.Exit


def _defaults(
    context: typer.Context,
    url: Annotated[
        str, typer.Option("--url", envvar="STATEVISOR_URL", help="The server.")
    ] = DEFAULT_URL,
    token: Annotated[
        str | None, typer.Option("--token", envvar="STATEVISOR_TOKEN", help="The API key.")
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="The form of the answer.")
    ] = Output.TABLE,
    version: Annotated[  # read by its callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = Defaults(url=url, token=token, output=output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no error leaves a traceback."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    app = build(words[0] if words else None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not have every character
    try:
        app(args=words, prog_name="statevisor")  # not what an interpreter was told to run
    except StatevisorError as error:
        report(error)
        return exit_code(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
