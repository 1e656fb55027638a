"""Versions: list, compare, prove, carry to a file and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from blake3 import blake3

from statevisor.api.cli.arguments import ActorName, VersionName
from statevisor.api.cli.client import path
from statevisor.api.cli.output import facts, table
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.transfer import copying
from statevisor.api.cli.units import age, size
from statevisor.hypervisor.errors import ImageCorrupt, InvalidRequest, VersionUnproved

version_lines = table(
    (
        ("VERSION", lambda v: v["handle"]),
        ("OP", lambda v: v["rule"] or v["op"]),
        ("POSITION", lambda v: v["position"]),
        ("PARENTS", lambda v: v["parents"]),
        ("SIZE", lambda v: size(v["bytes"])),
        ("DIGEST", lambda v: v["digest"] and v["digest"][:19]),
        ("TAGS", lambda v: v["tags"]),
        ("LABELS", lambda v: v["labels"]),
        ("AGE", lambda v: age(v["created_at"])),
    )
)
_family_lines = table(
    (
        ("FAMILY", lambda f: f["family"]),
        ("LAYER", lambda f: f["layer"]),
        ("NORM_A", lambda f: f"{f['norm_a']:.6g}"),
        ("NORM_B", lambda f: f"{f['norm_b']:.6g}"),
        ("DISTANCE", lambda f: f"{f['distance']:.6g}"),
        ("COSINE", lambda f: None if f["cosine"] is None else f"{f['cosine']:.9f}"),
    )
)


def versions(remote: Remote, actor: ActorName) -> None:
    """List an actor's versions."""
    remote.show(list(remote.client.pages(path("actors", actor, "versions"))), version_lines)


def tags(remote: Remote, actor: ActorName) -> None:
    """List an actor's tagged versions; `snapshot --tag` sets a tag, or moves it.

    Example: statevisor tags alice
    """
    found = remote.client.pages(path("actors", actor, "versions"))
    remote.show([version for version in found if version["tags"]], version_lines)


def diff(remote: Remote, version: VersionName, other: VersionName) -> None:
    """Compare two versions: tokens, and every layer of the state."""
    remote.show(remote.client.get(path("versions", version, "diff", other)), diff_lines)


def diff_lines(value: Mapping[str, Any]) -> Iterator[str]:
    """Where the two part, then how far every layer of one is from the other's."""
    apart = {name: len(value[f"tokens_{name}"]) for name in "ab"}
    yield from facts(
        {
            **{name: value[name]["handle"] for name in "ab"},
            "common_ancestor": value["common_ancestor"],
            "shared_tokens": value["shared_tokens"],
            **{f"tokens_after_{name}": count for name, count in apart.items()},
        }
    )
    yield ""
    yield from _family_lines(value["families"])


def verify(remote: Remote, version: VersionName) -> None:
    """Derive a version again from its nearest ancestor image and compare digests."""
    found = remote.client.post(path("versions", version, "verify"))
    remote.show(found, facts)
    if not found["ok"]:
        raise VersionUnproved(
            f"{version} does not follow from its journal",
            hint=f"Compare it with its neighbours: `statevisor diff {version} OTHER`.",
        )


def export(
    remote: Remote,
    version: VersionName,
    file: Annotated[Path, typer.Argument(help="Written whole or not at all; `-` is stdout.")],
) -> None:
    """Write a version's image to a safetensors file and check what arrived."""
    with remote.client.download(path("versions", version, "export")) as (nbytes, chunks):
        if str(file) == "-":
            _write(chunks, sys.stdout.buffer)
            return
        with copying(f"export {version}", nbytes) as progress, _whole(file) as out:
            found = _write(progress(chunks), out)
            digest = remote.client.get(path("versions", version))["digest"]
            if found != digest:
                raise ImageCorrupt(
                    f"what arrived has the digest {found}, not {digest}", hint="Export it again."
                )
    written = {"version": version, "file": str(file), "bytes": file.stat().st_size}
    remote.show({**written, "digest": digest}, facts)


@contextmanager
def _whole(file: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when all is written. Raises: InvalidRequest."""
    partial = file.with_name(file.name + ".partial")
    try:
        with partial.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        partial.replace(file)
    except OSError as error:
        raise InvalidRequest(
            f"cannot write {file}: {error.strerror}", hint="Check the path and the free space."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _write(chunks: Iterable[bytes], out: BinaryIO) -> str:
    """Write the chunks and return the digest of all."""
    hashed = blake3()
    for chunk in chunks:
        out.write(chunk)
        hashed.update(chunk)
    return f"blake3:{hashed.hexdigest()}"


def import_(
    remote: Remote,
    file: Annotated[Path, typer.Argument(help="A file that export wrote.")],
    *,
    name: Annotated[str | None, typer.Option(help="Name of the actor it becomes.")] = None,
    digest: Annotated[
        str | None, typer.Option(help="What export printed; another file is refused.")
    ] = None,
) -> None:
    """Make an actor from an exported file."""
    try:
        source = file.open("rb")
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {file}: {error.strerror}", hint="Check the path."
        ) from error
    nbytes = file.stat().st_size
    with source, copying(f"import {file.name}", nbytes) as progress:
        version = remote.client.upload(
            path("versions", "import"),
            progress.reading(source),
            nbytes,
            {"name": name, "digest": digest},
        )
    remote.show(version, lambda made: version_lines([made]))


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "versions")(versions)
    command(app, "tags")(tags)
    command(app, "diff")(diff)
    command(app, "verify")(verify)
    command(app, "export")(export)
    command(app, "import")(import_)
