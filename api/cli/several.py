"""Several actors in one command: all are looked at before anything is done with one."""

from __future__ import annotations

from collections.abc import Iterable

from statevisor.api.cli.client import Client, path
from statevisor.hypervisor.errors import ActorNotFound


def find_all(client: Client, actors: Iterable[str]) -> dict[str, str]:
    """The words that name them, by id; who is named twice is in it once.

    Raises: ActorNotFound that tells all that are missing.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    for actor in actors:
        try:
            found.setdefault(client.get(path("actors", actor))["id"], actor)
        except ActorNotFound:
            missing.append(repr(actor))
    if missing:
        raise ActorNotFound(f"there is no actor {', '.join(missing)}")
    return found
