"""What every command that talks to a server shares: where it is, who asks, and how to print."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from statevisor.api.cli.client import Client
from statevisor.api.cli.output import Output, show

DEFAULT_URL = "http://127.0.0.1:8000"
#: A server that has just been started loads its model first.
PATIENCE_S = 120.0

P = ParamSpec("P")
Command = Callable[Concatenate["Remote", P], None]

Url = Annotated[
    str | None,
    typer.Option("--url", help=f"The server. Default: $STATEVISOR_URL or {DEFAULT_URL}."),
]
Token = Annotated[
    str | None, typer.Option("--token", help="The API key. Default: $STATEVISOR_TOKEN.")
]
Form = Annotated[
    Output | None, typer.Option("--output", "-o", help="The form of the answer. Default: table.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The options given before the command's name, or by the environment."""

    url: str = DEFAULT_URL
    token: str | None = None
    output: Output = Output.TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A server and how its answers are printed."""

    client: Client
    output: Output

    def show(self, value: Any, lines: Callable[[Any], Iterable[str]]) -> None:
        """Print an answer; `lines` makes its form for people."""
        show(value, self.output, lines)

    @property
    def plain(self) -> bool:
        """Whether a person reads the output, not a program."""
        return self.output is Output.TABLE


def command(app: typer.Typer, name: str) -> Callable[[Command[P]], Command[P]]:
    """Register a function as a command that takes `--url`, `--token` and `--output` as well."""

    def register(function: Command[P]) -> Command[P]:
        own = inspect.signature(function, eval_str=True)
        kept = list(own.parameters.values())[1:]
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for key, kind in (("url", Url), ("token", Token), ("output", Form))
        ]
        context = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )

        @functools.wraps(function)
        def call(context: typer.Context, **given: Any) -> None:
            defaults = context.find_object(Defaults) or Defaults()
            url, token, output = (given.pop(key) for key in ("url", "token", "output"))
            remote = Remote(
                client=Client(url or defaults.url, token or defaults.token, patience_s=PATIENCE_S),
                output=output or defaults.output,
            )
            function(remote, **given)  # type: ignore[call-arg]

        parameters = [context, *kept, *shared]
        call.__dict__["__signature__"] = inspect.Signature(parameters)
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(call)
        return function

    return register
