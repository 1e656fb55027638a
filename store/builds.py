"""The builds that computed states: each name is written once, versions hold its number."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from statevisor.store.prepared import Numbered, Prepared
from statevisor.store.scope import Scope
from statevisor.store.tables import build

_GET = Prepared(select(build.c.id).where(build.c.name == bindparam("wanted")))
_INSERT = Numbered(build)


def number(conn: Connection, name: str | None) -> int | None:
    """The number of a build; one that was not seen before gets one."""
    if name is None:
        return None
    found: int | None = _GET.scalar(conn, {"wanted": name})
    return _INSERT.add(conn, {"name": name}) if found is None else found


def of_model(scope: Scope, model: str) -> int | None:
    """The number of the build that steps a model now."""
    return number(scope.conn, scope.builds.get(model))
