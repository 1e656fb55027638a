"""What a search for ancestors costs: statements, not time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from statevisor.store import ancestry, lanes, prepared, synthetic
from statevisor.store.db import FILE, begin, open_engine
from statevisor.store.prepared import execute

VERSIONS = 20_000  #: four lives have 1,250 each, with a dozen rules


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("history")
    synthetic.build(folder, VERSIONS)
    engine = open_engine(folder / FILE, connections=1)
    with engine.connect() as made:
        begin(made, write=True)
        yield made
    engine.dispose()


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement from now on."""
    found: list[str] = []

    def counted(conn: Connection, sql: str, *rest: object, **more: bool) -> list[object]:
        found.append(sql)
        return execute(conn, sql, *rest, **more)

    monkeypatch.setattr(prepared, "execute", counted)
    return found


def handles(conn: Connection, where: str) -> list[str]:
    rows = execute(conn, f"SELECT actor_id, seq FROM version WHERE {where} ORDER BY id")
    return [f"{actor}@{seq}" for actor, seq in rows]


def test_the_rules_of_a_life_are_passed_at_once(conn, spent, monkeypatch):
    monkeypatch.setattr(lanes, "NEAR", 1)
    life = handles(conn, "actor_id = 'act_00000003'")
    assert execute(conn, "SELECT count(*) FROM segment WHERE actor_id = 'act_00000003'")[0][0] > 5

    found = ancestry.common(conn, life[1], life[-1])

    assert found == execute(conn, "SELECT id FROM version WHERE actor_id = 'act_00000003'")[1][0]
    # two handles, two places, the lane of the later end, its blends and what is above, the version
    assert len(spent) <= 8


def test_kin_are_told_before_the_blends_of_what_they_share(conn, spent):
    """Two children of one version ask for nothing that lies above it."""
    twins = execute(
        conn,
        """SELECT e.parent, min(c.actor_id), max(c.actor_id) FROM version_parent e
           JOIN version c ON c.id = e.child WHERE c.op = 'fork' GROUP BY e.parent
           HAVING count(*) > 1 ORDER BY e.parent DESC LIMIT 20""",
    )
    for parent, a, b in twins:
        spent.clear()
        found = ancestry.common(conn, f"{a}@0", f"{b}@0")
        assert found == parent
        assert len(spent) <= 9


def test_strangers_cost_less_than_a_statement_for_a_lane(conn, spent):
    ends = handles(conn, f"id % {VERSIONS // 40} = 0")
    segments = execute(conn, "SELECT count(*) FROM segment")[0][0]
    most = 0
    for a, b in zip(ends, reversed(ends), strict=True):
        spent.clear()
        ancestry.common(conn, a, b)
        most = max(most, len(spent))
    assert most < 40 < segments / 15


def test_without_lanes_a_life_costs_a_statement_for_a_rule(conn, spent, monkeypatch):
    """The control of the first test: were every segment a lane of its own."""
    monkeypatch.setattr(lanes, "NEAR", 1)
    life = handles(conn, "actor_id = 'act_00000003'")
    execute(conn, "SAVEPOINT whole")
    try:
        execute(conn, "DELETE FROM lane")
        spent.clear()
        ancestry.common(conn, life[1], life[-1])
        assert len(spent) > 12
    finally:
        execute(conn, "ROLLBACK TO whole")


@pytest.mark.parametrize("part", [1, 3])
def test_blends_read_in_parts_are_all_read(conn, part, monkeypatch):
    ends = handles(conn, f"id % {VERSIONS // 30} = 7")
    pairs = list(zip(ends, reversed(ends), strict=True))
    whole = [ancestry.common(conn, a, b) for a, b in pairs]
    monkeypatch.setattr(lanes, "PART", part)

    assert [ancestry.common(conn, a, b) for a, b in pairs] == whole
    assert any(whole)
