"""Idempotency keys and what they did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.records import OperationRecord
from statevisor.store.guards import check_key, result_of
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import operation, turn

_GET = Prepared(
    select(operation).where(
        operation.c.key == bindparam("at"), operation.c.created_us >= bindparam("oldest")
    )
)
_BROKEN = Prepared(select(turn.c.broken).where(turn.c.id == bindparam("turn")))
_INSERT = inserting(operation)
_DROP = Prepared(delete(operation).where(operation.c.key == bindparam("at")))
_EXPIRE = Prepared(delete(operation).where(operation.c.created_us < bindparam("oldest")))
_SETTLE = Prepared(
    update(operation)
    .where(operation.c.turn_id == bindparam("turn"))
    .values(result=bindparam("outcome"))
)


def get(conn: Connection, key: str, oldest_us: int) -> OperationRecord | None:
    """What a key was used for, unless that is too long ago."""
    row = _GET.first(conn, {"at": key, "oldest": oldest_us})
    if row is None:
        return None
    return OperationRecord(
        key=row.key,
        request=row.request,
        turn_id=row.turn_id,
        result=row.result,
        created_at=row.created_us,
    )


def check(scope: Scope, once: Once | None) -> None:
    """Refuse a key that was used already. Raises: IdempotencyMismatch, Conflict."""
    if once is not None:
        check_key(_known(scope, once), once)


def check_turn(scope: Scope, once: Once | None) -> None:
    """As `check`, but the key of a broken turn may begin another. Raises: as `check`."""
    if once is None:
        return
    known = _known(scope, once)
    broken = (
        known is not None
        and known.result is None
        and known.turn_id is not None
        and _BROKEN.scalar(scope.conn, {"turn": known.turn_id}) is True
    )
    check_key(known, once, resumable=broken)


def keep(scope: Scope, once: Once | None, **records: Any) -> None:
    """Keep a key with the records its operation returned, if there is a key: see `result_of`."""
    if once is not None:
        store(scope, once, result_of(**records))


def store(
    scope: Scope, once: Once, result: Mapping[str, Any] | None, *, turn_id: str | None = None
) -> None:
    """Keep a key with its result, or with the turn that will give it; drops what has expired."""
    _EXPIRE.run(scope.conn, {"oldest": scope.now_us - scope.keep_keys_us})
    _DROP.run(scope.conn, {"at": once.key})
    _INSERT.run(
        scope.conn,
        {
            "key": once.key,
            "request": once.request,
            "turn_id": turn_id,
            "result": None if result is None else dict(result),
            "created_us": scope.now_us,
        },
    )


def remember(scope: Scope, once: Once, result: Mapping[str, Any]) -> None:
    """Keep a key whose operation has no transaction of its own. Raises: as `check`."""
    known = _known(scope, once)
    check_key(known, once, resumable=known is not None and known.result is None)
    store(scope, once, result, turn_id=None if known is None else known.turn_id)


def settle(conn: Connection, turn_id: str, result: Mapping[str, Any]) -> None:
    """Keep the result of the key that began a turn, if one did."""
    _SETTLE.run(conn, {"turn": turn_id, "outcome": dict(result)})


def _known(scope: Scope, once: Once) -> OperationRecord | None:
    return get(scope.conn, once.key, scope.now_us - scope.keep_keys_us)
