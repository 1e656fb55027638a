"""A made-up data folder of very many actors at rest, written straight into the tables.

Every actor has said a little and was laid down: one segment, one version, its tokens and an image.
The slab files have their size and no bytes, so nobody of this crowd can wake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from statevisor.hypervisor.layout import Fingerprints
from statevisor.store.backup import IMAGES
from statevisor.store.db import begin, finish, migrate, open_engine
from statevisor.store.packing import pack_run
from statevisor.store.prepared import execute

TOKENS: Final = 64  #: of every actor
_EXTENT = 8192
_SLAB = 64 << 20
_PER_SLAB = _SLAB // _EXTENT
_AT_ONCE = 5000

Row = Mapping[str, Any]


def build(folder: Path, actors: int, *, model: str, prints: Fingerprints) -> None:
    """Fill a fresh data folder."""
    engine = open_engine(migrate(folder), connections=1)
    try:
        with engine.connect() as conn:
            for first in range(1, actors + 1, _AT_ONCE):
                begin(conn, write=True)
                numbers = range(first, min(actors + 1, first + _AT_ONCE))
                for name, rows in _rows(numbers, model, prints):
                    _insert(conn, name, rows)
                finish(conn, commit=True)
    finally:
        engine.dispose()
    _slabs(folder / IMAGES, actors)


def _insert(conn: Connection, name: str, rows: Sequence[Row]) -> None:
    columns = list(rows[0])
    marks = ",".join("?" * len(columns))
    named = ",".join(f'"{column}"' for column in columns)
    values = [tuple(row.values()) for row in rows]
    execute(conn, f"INSERT INTO {name} ({named}) VALUES ({marks})", values, many=True)


def _rows(numbers: range, model: str, prints: Fingerprints) -> Iterator[tuple[str, Sequence[Row]]]:
    """Tables and their rows, in an order that foreign keys allow."""
    said = range(97, 97 + TOKENS)
    shared = {"epoch": 1, "owner": 1}
    yield "segment", [_segment(number) for number in numbers]
    if numbers.start == 1:
        yield "build", [{"id": 1, "name": prints.build}]
    yield (
        "actor",
        [
            {
                **{"id": _key(number), "name": f"resident-{number}", "model": model},
                **{"segment": number, "position": TOKENS, "base": 0, "head": 0, "next_seq": 1},
                **{"generation": 1, "seed": number, "pinned": False, "drift": False},
                **{"labels": "{}", "created_us": number, "updated_us": number, **shared},
            }
            for number in numbers
        ],
    )
    yield (
        "token_run",
        [
            {
                **{"segment": number, "start": 0, "count": TOKENS, "kind": "prompt"},
                "data": pack_run(number, 0, "prompt", said),
            }
            for number in numbers
        ],
    )
    yield (
        "version",
        [
            {
                **{"id": number, "actor_id": _key(number), "seq": 0, "segment": number},
                **{"position": TOKENS, "place": number, "op": "create", "drift": False},
                **{"hidden": False, "build": 1, "labels": "{}"},
                **{"created_us": number, **shared},
            }
            for number in numbers
        ],
    )
    yield "image", [_image(number, prints) for number in numbers]
    yield (
        "checkpoint",
        [
            {"segment": number, "position": TOKENS, "digest": _digest(number), "created_us": number}
            for number in numbers
        ],
    )


def _segment(number: int) -> Row:
    plain = {"parent": None, "position": 0, "rooted": False, "depth": 0, "place": None}
    return {"id": number, "actor_id": _key(number), **plain}


def _image(number: int, prints: Fingerprints) -> Row:
    slab, at = divmod(number - 1, _PER_SLAB)
    return {
        **{"digest": _digest(number), "nbytes": 4096, "slab": slab},
        **{"offset": at * _EXTENT, "length": _EXTENT},
        **{"layout": prints.layout, "weights": prints.weights, "build": prints.build},
    }


def _slabs(folder: Path, actors: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for slab in range(-(-actors // _PER_SLAB)):
        with (folder / f"{slab:08}.slab").open("wb") as file:
            file.truncate(_SLAB)


def _key(number: int) -> str:
    return f"act_{number:026}"


def _digest(number: int) -> str:
    return f"blake3:{number:064x}"
