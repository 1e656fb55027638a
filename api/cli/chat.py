"""Talk to an actor in a loop, and branch its life from the keyboard."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from statevisor.api.cli.client import fields, path
from statevisor.api.cli.faults import report
from statevisor.api.cli.lineage import family, tree
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.turns import stream_turn
from statevisor.api.cli.versions import export
from statevisor.hypervisor.errors import ActorNotFound, InvalidRequest, StatevisorError, Unavailable

#: The form in which the embedded guest and the RWKV world models were taught to chat.
TEMPLATE = "User: {}\n\nAssistant:"
_GAP = "\n\n"
#: Tokens whose text is looked at for a stop text that is there already.
_TAIL = 32
_HELP = """\
/snap [TAG]      name the present state
/fork [NAME]     go on as a child; the parent stays as it is
/back [N]        take back the last message, or the last N
/tree            draw the lineage
/save FILE       write the present state to a file
/quit            leave; the actor stays"""


class Chat:
    """One conversation: the actor in use and where each of its messages began."""

    def __init__(self, remote: Remote, actor: str, template: str, options: dict[str, Any]) -> None:
        self._remote = remote
        self._client = remote.client
        self._template = template
        opening = template.partition("{}")[0].rstrip()  # "User:"
        self._opening = _GAP + opening if opening else ""
        self._options = {**options, "stop": [self._opening]} if opening else options
        self._begun: list[int] = []  #: positions before each message
        self.actor = actor

    def say(self, text: str) -> None:
        """Send a message and print the answer as it comes."""
        actor = self._client.get(path("actors", self.actor))
        position = int(actor["position"])
        told = self._template.replace("{}", text)
        if position and self._opening:
            # A stop text stays in the transcript: do not open the message twice.
            ended = self._tail(actor).endswith(self._opening)
            told = (_GAP + told).removeprefix(self._opening) if ended else _GAP + told
        stream_turn(self._client, self.actor, {**self._options, "prompt": told})
        self._begun.append(position)

    def command(self, line: str) -> bool:
        """Run a /command; False ends the chat. Raises: InvalidRequest for an unknown one."""
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/quit" | "/exit":
                return False
            case "/help":
                typer.echo(_HELP)
            case "/snap":
                typer.echo(self._snap(rest or None)["handle"])
            case "/fork":
                self._fork(rest or None)
            case "/back":
                self._back(rest or "1")
            case "/tree":
                for drawn in tree(family(self._client, self.actor)):
                    typer.echo(drawn)
            case "/save" if rest:
                export(self._remote, self._snap(None)["handle"], Path(rest))
            case _:
                raise InvalidRequest(f"{line!r} is not a command here", hint="See /help.")
        return True

    def _tail(self, actor: dict[str, Any]) -> str:
        """The end of an actor's text, as far as its transcript reaches back."""
        begin = max(actor.get("base", 0), actor["position"] - _TAIL)
        route = path("actors", self.actor, "transcript")
        return str(self._client.get(route, {"from": begin})["text"])

    def _snap(self, tag: str | None) -> dict[str, Any]:
        made: dict[str, Any] = self._client.post(
            path("actors", self.actor, "snapshot"), fields(tag=tag)
        )
        return made

    def _fork(self, name: str | None) -> None:
        body = fields(count=1, names=[name] if name else None)
        child = self._client.post(path("actors", self.actor, "fork"), body)["data"][0]
        typer.echo(f"{child['name']} goes on from {child['parent']}")
        self.actor = child["name"]

    def _back(self, count: str) -> None:
        if not count.isdecimal() or not 0 < int(count) <= len(self._begun):
            raise InvalidRequest(
                f"there are {len(self._begun)} messages to take back",
                hint="For more: `statevisor rollback`.",
            )
        to = self._begun[-int(count)]
        self._client.post(path("actors", self.actor, "rollback"), {"to": to})
        del self._begun[-int(count) :]
        typer.echo(f"{self.actor} is at position {to}")


def chat(
    remote: Remote,
    actor: Annotated[
        str | None, typer.Argument(help="Made if it does not exist; left out: a new one.")
    ] = None,
    *,
    template: Annotated[
        str, typer.Option(help="How a message is put; {} is the text.", show_default=False)
    ] = TEMPLATE,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n")] = 256,
    temperature: Annotated[float | None, typer.Option("--temperature", "-t")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p")] = None,
) -> None:
    """Talk to an actor; /help lists what else can be typed. Ctrl-C cuts an answer short."""
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history for input())
    name = _open(remote, actor)
    options = fields(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
    talk = Chat(remote, name, template, options)
    typer.echo(f"You talk to {name}. /help lists the commands.")
    while True:
        try:
            line = input(f"{talk.actor}> ").strip()
        except EOFError:
            typer.echo()
            return
        try:
            if line.startswith("/"):
                if not talk.command(line):
                    return
            elif line:
                talk.say(line)
        except KeyboardInterrupt:
            typer.echo(" (cancelled)")  # the server sees that nobody listens, and ends the turn
        except Unavailable:
            raise
        except StatevisorError as error:
            report(error)


def _open(remote: Remote, actor: str | None) -> str:
    """The actor of this name, made if there is none."""
    if actor is not None:
        try:
            return str(remote.client.get(path("actors", actor))["name"])
        except ActorNotFound:
            pass
    return str(remote.client.post(path("actors"), fields(name=actor))["name"])


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    command(app, "chat")(chat)
