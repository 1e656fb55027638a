"""Administration: of a running server, and of a data folder at rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from statevisor.api.cli.client import fields, path
from statevisor.api.cli.output import Output, facts, show
from statevisor.api.cli.remote import Defaults, Remote, command
from statevisor.api.cli.units import parse_duration, size
from statevisor.hypervisor.errors import DamageFound, DrainIncomplete, InvalidRequest, Unavailable

_DATA = Path("statevisor-data")
Data = Annotated[Path, typer.Option("--data", help="The data folder; no server may use it.")]


def drain(remote: Remote) -> None:
    """Hibernate every actor to nvme and take no new work, before a stop or a change of build."""
    answer = remote.client.post(path("admin", "drain"))
    remote.show(answer, facts)
    if answer["failed"]:
        raise DrainIncomplete(f"{len(answer['failed'])} actors could not be hibernated")


def gc(
    remote: Remote,
    *,
    grace: Annotated[str | None, typer.Option(help="Nothing younger goes: 15m, 1h.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Take out what nothing needs: deleted actors, and images that a replay can make again."""
    body = fields(grace_s=parse_duration(grace) if grace else None, dry_run=dry_run or None)
    remote.show(remote.client.post(path("admin", "gc"), body), _collected)


def _collected(answer: Mapping[str, Any]) -> Iterator[str]:
    verb = "would remove" if answer["dry_run"] else "removed"
    yield (
        f"{verb} {answer['actors']} deleted actors, "
        f"{answer['versions']} versions, {answer['tokens']} tokens"
    )
    for name in ("removed", "kept"):
        for line in answer[name]:
            what = verb if name == "removed" else "kept"
            yield f"{what} {line['images']} images, {size(line['bytes'])}: {line['reason']}"
    freed, waiting = answer["freed"], answer["waiting"]
    yield f"freed {freed['images']} images, {size(freed['bytes'])}"
    if waiting["images"]:
        yield (
            f"{waiting['images']} images, {size(waiting['bytes'])}, "
            "are freed by a gc after the grace"
        )


def fsck(
    remote: Remote,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Derive every version again, too; needs a server.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="A data folder at rest, without a server.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="What actors run on that come back without a catalog.")
    ] = "demo",
) -> None:
    """Read and compare everything, bit by bit: a running server's, or a folder's."""
    if data is None:
        body = fields(repair=repair or None, replay=replay or None)
        answer = remote.client.post(path("admin", "fsck"), body)
    elif replay:
        raise InvalidRequest("a replay needs a running server", hint="Leave out --data.")
    else:
        from statevisor.api.wire_admin import fsck_object
        from statevisor.store.fsck import check_folder

        with _at_rest(data):
            report = check_folder(data, repair=repair, model=model)
        answer = dict(fsck_object(report))
    remote.show(answer, _checked)
    if not answer["ok"]:
        left = sum(not one["repaired"] for one in answer["findings"])
        raise DamageFound(f"{left} things are wrong")


def _checked(answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"read {answer['images']} images, {size(answer['bytes'])}"
    if answer["derived"]:
        yield f"derived {answer['derived']} versions again"
    for one in answer["findings"]:
        whose = one["version"] or one["actor"]
        state = "repaired" if one["repaired"] else "found"
        yield f"{state} {one['kind']}{f' ({whose})' if whose else ''}: {one['detail']}"
        if not one["repaired"]:
            yield f"  next: {one['advice']}"
    if not answer["findings"]:
        yield "nothing is wrong"


def backup(
    remote: Remote,
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new folder, or a new file ending in .tar.")
    ],
) -> None:
    """Copy the whole data folder while the server works; FILE is one of the server's machine."""
    answer = remote.client.post(path("admin", "backup"), {"path": os.path.abspath(target)})
    remote.show(answer, facts)


def restore(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What backup wrote.")],
    *,
    data: Annotated[Path, typer.Option("--data", help="The data folder to make.")] = _DATA,
    output: Annotated[Output | None, typer.Option("--output", "-o")] = None,
) -> None:
    """Make a data folder of a backup, on this machine, and compare every bit of it.

    Example: statevisor admin restore /backups/monday.tar --data monday
    """
    from statevisor.store.restore import restore as make

    view = make(source, data)
    made = {"object": "restored", "path": str(data), "images": view.images, "bytes": view.nbytes}
    defaults = context.find_object(Defaults) or Defaults()
    show(made, output or defaults.output, facts)


def db_current(data: Data = _DATA) -> None:
    """Show the schema of a data folder, and the one that this program has."""
    from statevisor.store.schema import revision

    with _at_rest(data):
        known = revision(data)
    typer.echo(f"{data}: {known.current or 'no catalog'}; this program has {known.head}")


def db_upgrade(data: Data = _DATA) -> None:
    """Bring a data folder to this program's schema, as a start of the server does."""
    from statevisor.store.schema import upgrade

    with _at_rest(data):
        known = upgrade(data)
    typer.echo(f"{data}: {known.current}")


@contextmanager
def _at_rest(data: Path) -> Iterator[None]:
    """Turn what a data folder's disk and database say into words."""
    from statevisor.store.db import translated

    try:
        with translated():
            yield
    except OSError as error:
        raise Unavailable(
            f"cannot open {data}: {error.strerror}", hint="Let this user write there."
        ) from error


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    group = typer.Typer(help="Administer a server, or a data folder at rest.")
    command(group, "drain")(drain)
    command(group, "gc")(gc)
    command(group, "fsck")(fsck)
    command(group, "backup")(backup)
    group.command("restore")(restore)
    catalog = typer.Typer(help="The schema of a data folder at rest.")
    catalog.command("current")(db_current)
    catalog.command("upgrade")(db_upgrade)
    group.add_typer(catalog, name="db")
    app.add_typer(group, name="admin")
