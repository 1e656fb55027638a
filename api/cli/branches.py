"""Branches of an actor's life: snapshot, fork, mutate, roll back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from statevisor.api.cli.actors import Labels, actor_lines
from statevisor.api.cli.arguments import ActorName, Reseed, pairs, place
from statevisor.api.cli.client import fields, path
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.versions import version_lines

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what it would cost.")]

#: Parameters of rules that are lists even with one entry.
_LISTS = ("others", "weights")


def snapshot(
    remote: Remote,
    actor: ActorName,
    *,
    tag: Annotated[str | None, typer.Option(help="A name for the version.")] = None,
    label: Labels = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until its image is written.")] = False,
) -> None:
    """Name an actor's present state as a version."""
    version = remote.client.post(
        path("actors", actor, "snapshot"),
        fields(tag=tag, labels=pairs(label)),
        query={"wait": "true"} if wait else None,
    )
    remote.show(version, lambda made: version_lines([made]))


def fork(
    remote: Remote,
    actor: ActorName,
    *,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1)] = None,
    name: Annotated[list[str] | None, typer.Option(help="One per child; repeat it.")] = None,
    at: Annotated[str | None, typer.Option(help="A version or a position.")] = None,
    rng: Reseed = None,
    seed: Annotated[list[int] | None, typer.Option(help="One per child; repeat it.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Make children that begin where the actor is, or where it was."""
    if count is None and (name or seed):
        count = len(name or seed or ())
    body = fields(
        count=count,
        names=name or None,
        at=place(at),
        rng=rng,
        seeds=seed or None,
        dry_run=dry_run or None,
    )
    answer = remote.client.post(path("actors", actor, "fork"), body)
    if dry_run:
        remote.show(answer, cost_lines)
    else:
        remote.show(answer["data"], actor_lines)


def mutate(
    remote: Remote,
    actor: ActorName,
    rule: Annotated[str, typer.Argument(help="decay, scale, zero, blend, add, noise, set, …")],
    params: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="The rule's parameters.")
    ] = None,
    *,
    family: Annotated[list[str] | None, typer.Option(help="Only this family; repeat it.")] = None,
    layer: Annotated[list[int] | None, typer.Option(help="Only this layer; repeat it.")] = None,
    head: Annotated[list[int] | None, typer.Option(help="Only this head; repeat it.")] = None,
    reason: Annotated[str | None, typer.Option(help="Kept with the version.")] = None,
) -> None:
    """Change an actor's state by a rule; the change is a version of its own."""
    select = fields(families=family or None, layers=layer or None, heads=head or None)
    body = fields(
        rule=rule,
        params={key: parameter(key, text) for key, text in (pairs(params) or {}).items()},
        select=select or None,
        reason=reason,
    )
    version = remote.client.post(path("actors", actor, "mutate"), body)
    remote.show(version, lambda made: version_lines([made]))


def parameter(key: str, text: str) -> Any:
    """`0.9` as a number, `a@1,b@2` as a list, anything else as a word."""
    if key in _LISTS or "," in text:
        try:
            whole = json.loads(text)
        except ValueError:
            whole = None
        if isinstance(whole, list):
            return whole
        return [_scalar(part) for part in text.split(",")]
    return _scalar(text)


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def rollback(
    remote: Remote,
    actor: ActorName,
    to: Annotated[str, typer.Argument(help="A version or a position.")],
    *,
    rng: Reseed = None,
    dry_run: DryRun = False,
) -> None:
    """Take an actor back; what it leaves stays in the lineage."""
    body = fields(to=place(to), rng=rng, dry_run=dry_run or None)
    answer = remote.client.post(path("actors", actor, "rollback"), body)
    remote.show(answer, cost_lines if dry_run else lambda actor: actor_lines([actor]))


def cost_lines(cost: Mapping[str, Any]) -> Iterator[str]:
    """What a dry run tells, for people."""
    begins = {
        "slot": "the state is in a slot and would be copied",
        "image": f"the nearest image is at {cost['source_position']}",
        "empty": "there is no image before it",
    }
    yield f"{cost['actor']} at position {cost['position']}: {begins[cost['source']]}"
    ms = cost["estimated_ms"]
    takes = "no replay was measured yet" if ms is None else f"about {ms:.0f} ms"
    yield f"tokens to replay: {cost['tokens']} ({takes})"
    kept = {"dense": "every checkpoint near here", "sparse": "one for every power of two"}
    yield f"never more than: {cost['bound_tokens']} (a collection keeps {kept[cost['bound']]})"


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "snapshot")(snapshot)
    command(app, "fork")(fork)
    command(app, "mutate")(mutate)
    command(app, "rollback")(rollback)
