"""A bit that changes in the rows of a transcript is found, named and not served."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from statevisor.hypervisor.catalog_port import NewActor
from statevisor.hypervisor.errors import CatalogCorrupt
from statevisor.store import runs
from statevisor.store.catalog import SqlCatalog
from statevisor.store.packing import unpack_tokens

TOKENS = (1, 2, 3, 4, 5)


def flips(value: Any) -> list[Any]:
    """A value with one bit changed, for some of its bits."""
    if isinstance(value, int):
        return [value ^ 1 << bit for bit in (0, 1, 2, 7, 20)]
    raw = value.encode() if isinstance(value, str) else value
    changed = []
    for at in (0, len(raw) // 2, len(raw) - 1):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        changed.append(damaged.decode() if isinstance(value, str) else bytes(damaged))
    return changed


@pytest.fixture
async def catalog(tmp_path: Path) -> Any:
    made = await SqlCatalog.open(tmp_path)
    await made.claim("test")
    await made.create(NewActor(id="act_a", name="a", model="m", seed=1, labels={}), TOKENS)
    await made.create(NewActor(id="act_b", name="b", model="m", seed=1, labels={}), TOKENS)
    yield made
    await made.close()


@pytest.mark.parametrize("column", ["count", "kind", "data"])
async def test_a_run_that_changed_is_not_served_and_told(
    catalog: SqlCatalog, tmp_path: Path, column: str
) -> None:
    segment = (await catalog.actor("a")).segment
    other = (await catalog.actor("b")).segment
    db = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    (value,) = db.execute(
        f"SELECT {column} FROM token_run WHERE segment = ?", (segment,)
    ).fetchone()
    for changed in flips(value):
        db.execute(f"UPDATE token_run SET {column} = ? WHERE segment = ?", (changed, segment))

        with pytest.raises(CatalogCorrupt, match=f"segment {segment}"):
            await catalog.transcript(segment, 0, 5)

        assert "run_damaged" in {one.kind for one in await catalog.check() if one.actor == "act_a"}
        assert (await catalog.transcript(other, 0, 5))[0].tokens == TOKENS
    db.execute(f"UPDATE token_run SET {column} = ? WHERE segment = ?", (value, segment))
    assert await catalog.check() == ()
    db.close()


@pytest.mark.parametrize("column", ["segment", "start"])
async def test_a_run_in_another_place_is_told(
    catalog: SqlCatalog, tmp_path: Path, column: str
) -> None:
    segment = (await catalog.actor("a")).segment
    db = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    db.execute(f"UPDATE token_run SET {column} = {column} + 4 WHERE segment = ?", (segment,))

    assert "run_damaged" in {one.kind for one in await catalog.check()}

    found = []
    with suppress(CatalogCorrupt):
        found = [t for run in await catalog.transcript(segment, 0, 5) for t in run.tokens]
    assert found == [], "no token in a wrong place"
    db.close()


async def test_without_the_sum_another_token_would_be_served(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    segment = (await catalog.actor("a")).segment
    db = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    (data,) = db.execute("SELECT data FROM token_run WHERE segment = ?", (segment,)).fetchone()
    changed = bytes([*data[:-4], data[-4] ^ 8, *data[-3:]])
    db.execute("UPDATE token_run SET data = ? WHERE segment = ?", (changed, segment))
    db.close()
    monkeypatch.setattr(runs, "unpack_run", lambda *row: unpack_tokens(row[-1][8:]))

    assert (await catalog.transcript(segment, 0, 5))[0].tokens == (1, 2, 3, 4, 5 ^ 8)
