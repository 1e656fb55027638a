"""Turns: append text to an actor, let it answer, stop it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from statevisor.api.cli.arguments import ActorName, token_list
from statevisor.api.cli.client import Client, fields, path
from statevisor.api.cli.output import facts
from statevisor.api.cli.prompt import read_prompt
from statevisor.api.cli.remote import Remote, command
from statevisor.hypervisor.errors import Unavailable

Tokens = Annotated[str | None, typer.Option("--tokens", help="The text as ids: 1,2,3.")]
Text = Annotated[str | None, typer.Argument(help="The text; `-` reads standard input.")]


def turn_events(client: Client, actor: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The token events of a streamed turn, then the turn object itself.

    Raises: Unavailable if the stream ends before the turn did.
    """
    ended = False
    for event in client.events(path("actors", actor, "generate"), {**body, "stream": True}):
        if event.name in ("token", "turn"):
            ended = ended or event.name == "turn"
            yield event.data
    if not ended:
        raise Unavailable(
            "the stream broke before the turn ended",
            hint=f"What you saw is kept. `statevisor generate {actor}` without a text goes on.",
        )


def append(remote: Remote, actor: ActorName, text: Text = None, *, tokens: Tokens = None) -> None:
    """Let an actor read a text without answering."""
    body = fields(prompt=read_prompt(text), token_ids=token_list(tokens))
    remote.show(remote.client.post(path("actors", actor, "append"), body), facts)


def generate(
    remote: Remote,
    actor: ActorName,
    text: Text = None,
    *,
    tokens: Tokens = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", "-t")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p")] = None,
    presence_penalty: Annotated[float | None, typer.Option("--presence-penalty")] = None,
    frequency_penalty: Annotated[float | None, typer.Option("--frequency-penalty")] = None,
    penalty_decay: Annotated[float | None, typer.Option("--penalty-decay")] = None,
    seed: Annotated[int | None, typer.Option(help="For this turn only.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    stop_token: Annotated[list[int] | None, typer.Option("--stop-token")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Alternatives per token.")] = None,
    dry: Annotated[
        bool, typer.Option("--no-commit", help="On a throw-away copy; the actor stays as it is.")
    ] = False,
) -> None:
    """Let an actor answer; the text appears as it is made. Without a text it goes on."""
    body = fields(
        prompt=read_prompt(text),
        token_ids=token_list(tokens),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        penalty_decay=penalty_decay,
        seed=seed,
        stop=stop or None,
        stop_token_ids=stop_token or None,
        ignore_eos=ignore_eos or None,
        logprobs=logprobs,
        commit=False if dry else None,
    )
    if remote.plain:
        stream_turn(remote.client, actor, body)
    else:
        remote.show(remote.client.post(path("actors", actor, "generate"), body), facts)


def stream_turn(client: Client, actor: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Print a turn's text as it comes and return the finished turn."""
    turn: dict[str, Any] = {}
    for event in turn_events(client, actor, body):
        if event.get("object") == "turn":
            turn = event
        else:
            typer.echo(event["text"], nl=False)
    typer.echo()
    if turn["finish_reason"] not in ("stop", "length"):
        typer.echo(f"({turn['finish_reason']} at position {turn['position']})", err=True)
    return turn


def transcript(
    remote: Remote,
    actor: ActorName,
    *,
    start: Annotated[int | None, typer.Option("--from", min=0, help="First position.")] = None,
    stop: Annotated[int | None, typer.Option("--to", min=0, help="Position to end before.")] = None,
) -> None:
    """Print what an actor was told and said; with -o json the tokens too."""
    query = {"from": start, "to": stop}
    found = remote.client.get(path("actors", actor, "transcript"), query)
    remote.show(found, lambda value: [value["text"]])


def cancel(
    remote: Remote,
    actor: ActorName,
    turn: Annotated[str | None, typer.Option(help="Left out: whichever runs.")] = None,
) -> None:
    """End an actor's running turn at its last committed token."""
    remote.client.post(path("actors", actor, "cancel"), fields(turn=turn))
    if remote.plain:
        typer.echo(f"{actor} is being cancelled")


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "append")(append)
    command(app, "generate")(generate)
    command(app, "transcript")(transcript)
    command(app, "cancel")(cancel)
