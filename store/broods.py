"""Broods: the children of a fork that have done nothing yet, in one row.

Ids, names, seeds, segments and versions of all follow from those of the first. What changes one of
them first gives it rows of its own (`store/hatching.py`); the row goes with the last. So a child
here has generation 1, stands at its first version, where its parent stood, and nothing goes on
from it: it has no children, no tokens and no images of its own.

Times in ids, times of creation, segments and versions rise from brood to brood together. So what
is not indexed is found by halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, String, bindparam, cast, func, or_, select

from statevisor.hypervisor.ids import ALIKE, actor_id, name_at, name_parts, nth_seed, parts
from statevisor.hypervisor.records import ActorRecord, SegmentRecord, VersionRecord
from statevisor.hypervisor.vocab import ACTOR_PREFIX, Op
from statevisor.store.halves import last_by
from statevisor.store.names import shown_name
from statevisor.store.prepared import Prepared, PreparedIn
from statevisor.store.tables import actor, brood, segment, version

PARENT = version.alias("parent_version")
_owner = actor.alias("parent_actor")
_home = segment.alias("parent_segment")
#: Broods, each with the place of the version it comes from and how that is shown.
ROWS = (
    select(
        brood,
        PARENT.c.segment.label("below"),
        PARENT.c.position,
        PARENT.c.place,
        PARENT.c.build,
        _home.c.depth,
        (shown_name(_owner) + "@" + cast(PARENT.c.seq, String)).label("parent_handle"),
    )
    .join(PARENT, PARENT.c.id == brood.c.parent)
    .join(_home, _home.c.id == PARENT.c.segment)
    .join(_owner, _owner.c.id == PARENT.c.actor_id)
)
_OF_ID = Prepared(
    ROWS.where(
        brood.c.salt == bindparam("salt"),
        brood.c.at <= bindparam("time"),
        brood.c.at + brood.c.count > bindparam("time"),
    )
)
#: Of a salt, those whose own names may have such a time.
_OF_OWN = Prepared(
    ROWS.where(
        brood.c.salt == bindparam("salt"),
        brood.c.name.is_(None),
        (bindparam("time") - brood.c.at).bitwise_and(ALIKE - 1) < brood.c.count,
    )
)
_OF_SALTS = PreparedIn(lambda keys: ROWS.where(brood.c.salt.in_(keys)))
_CLASHING = Prepared(
    ROWS.where(
        or_(
            brood.c.salt == bindparam("salt"),
            brood.c.salt == bindparam("other"),
            brood.c.name == bindparam("name"),
        )
    )
)
_OF_NAME = Prepared(ROWS.where(brood.c.name == bindparam("key")))
UP_TO = Prepared(
    ROWS.where(brood.c.id <= bindparam("number"))
    .order_by(brood.c.id.desc())
    .limit(bindparam("limit"))
)
_COUNT = Prepared(select(func.coalesce(func.sum(brood.c.waiting), 0)))


@dataclass(frozen=True)
class Child:
    """One of a brood, without rows of its own."""

    brood: Any  #: a row of `ROWS`
    nth: int

    @cached_property
    def id(self) -> str:
        """Its id."""
        return actor_id(self.brood.at + self.nth, self.brood.salt)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.brood.name or name_at(self.brood.at + self.nth, self.brood.salt)

    @property
    def number(self) -> int:
        """The id of its version."""
        return int(self.brood.id) + self.nth

    @property
    def segment(self) -> int:
        """The id of its segment."""
        return int(self.brood.segment) + self.nth

    @property
    def seed(self) -> int:
        """Its sampler's seed."""
        return int(self.brood.seed) if self.brood.alike else nth_seed(self.brood.seed, self.nth)

    def actor(self) -> ActorRecord:
        """It as an actor."""
        row = self.brood
        return ActorRecord(
            id=self.id,
            name=self.name,
            model=row.model,
            segment=self.segment,
            position=row.position,
            base=row.base,
            head=0,
            generation=1,
            seed=self.seed,
            epoch=row.epoch,
            labels=row.labels or {},
            parent=row.parent_handle,
            drift=row.drift,
            created_at=row.created_us,
            updated_at=row.created_us,
        )

    def stretch(self) -> SegmentRecord:
        """Its segment."""
        return SegmentRecord(
            id=self.segment,
            actor_id=self.id,
            parent=self.brood.below,
            position=self.brood.position,
            rooted=False,
            depth=self.brood.depth + 1,
        )

    def version(self) -> VersionRecord:
        """Its version; the brood must be one of `brood_versions.numbered`."""
        row = self.brood
        return VersionRecord(
            actor_id=self.id,
            actor=self.name,
            seq=0,
            segment=self.segment,
            position=row.position,
            op=Op.FORK,
            parents=(row.parent_handle,),
            digest=row.digest,
            nbytes=row.nbytes,
            drift=row.drift,
            build=row.build_name,
            created_at=row.created_us,
        )


def find(conn: Connection, key: str) -> Child | None:
    """By id or name."""
    return of_id(conn, key) if key.startswith(ACTOR_PREFIX) else of_name(conn, key)


def of_id(conn: Connection, key: str) -> Child | None:
    """By id."""
    known = parts(key)
    if known is None:
        return None
    row = _OF_ID.first(conn, {"time": known[0], "salt": known[1]})
    return None if row is None else _waiting(row, known[0] - row.at)


def of_ids(conn: Connection, keys: Iterable[str]) -> list[Child]:
    """Those of some ids, in order of id."""
    known = {key: both for key in keys if (both := parts(key)) is not None}
    rows = _OF_SALTS.all(conn, sorted({salt for _, salt in known.values()})) if known else []
    found = [child for row in {row.id: row for row in rows}.values() for child in waiting(row)]
    return sorted((child for child in found if child.id in known), key=lambda child: child.id)


def of_name(conn: Connection, name: str) -> Child | None:
    """By name."""
    row = _OF_NAME.first(conn, {"key": name})
    if row is not None:
        return Child(row, 0)
    known = name_parts(name)
    if known is None:
        return None
    for row in _OF_OWN.all(conn, {"time": known[0], "salt": known[1]}):
        child = _waiting(row, (known[0] - row.at) % ALIKE)
        if child is not None:
            return child
    return None


def clashes(conn: Connection, key: str, name: str) -> bool:
    """Whether one of them has an id or a name."""
    time, salt = parts(key) or (-1, -1)
    low, other = name_parts(name) or (-1, -1)
    for row in _CLASHING.all(conn, {"salt": salt, "other": other, "name": name}):
        if row.name == name:
            return True
        if row.salt == salt and _waiting(row, time - row.at) is not None:
            return True
        if row.salt == other and row.name is None and _waiting(row, (low - row.at) % ALIKE):
            return True
    return False


def of_number(conn: Connection, number: int) -> Child | None:
    """By the id of its version."""
    row = UP_TO.first(conn, {"number": number, "limit": 1})
    return None if row is None else _waiting(row, number - row.id)


def of_segment(conn: Connection, at: int) -> Child | None:
    """By its segment."""
    number = last_by(conn, "segment", at)
    row = UP_TO.first(conn, {"number": number, "limit": 1}) if number else None
    return None if row is None else _waiting(row, at - row.segment)


def count(conn: Connection) -> int:
    """All there are."""
    return int(_COUNT.scalar(conn, {}) or 0)


def nths(row: Any) -> Iterator[int]:
    """Which of a brood have no rows yet."""
    return (nth for nth in range(row.count) if is_waiting(row, nth))


def waiting(row: Any) -> Iterator[Child]:
    """Those of a brood that have no rows yet."""
    return (Child(row, nth) for nth in nths(row))


def _waiting(row: Any, nth: int) -> Child | None:
    """The nth of a brood, unless it has rows, or there is none."""
    return Child(row, nth) if is_waiting(row, nth) else None


def is_waiting(row: Any, nth: int) -> bool:
    """Whether a brood has so many children, and that one no rows."""
    bits = row.hatched
    return 0 <= nth < row.count and not (bits and bits[nth >> 3] >> (nth & 7) & 1)
