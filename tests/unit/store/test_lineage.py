"""What a graph shows, against all edges of a history, and how many statements it takes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields

import pytest
from sqlalchemy import Connection

from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import Op
from statevisor.store import edges, lineage, prepared, synthetic, versions
from statevisor.store.db import FILE, begin, open_engine
from statevisor.store.prepared import execute
from statevisor.store.synthetic import Synthetic

VERSIONS = 2000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Synthetic]]:
    folder = tmp_path_factory.mktemp("history")
    made = synthetic.build(folder, VERSIONS, seed=3)
    engine = open_engine(folder / FILE, connections=1)
    with engine.connect() as conn:
        begin(conn, write=True)
        yield conn, made
    engine.dispose()


def edges_of(conn: Connection, direction: str) -> dict[int, list[int]]:
    """Neighbours of every version."""
    up = direction == "ancestors"
    near: dict[int, list[int]] = {}
    order = "child, ord" if up else "parent, child"
    for child, parent in execute(
        conn, f"SELECT child, parent FROM version_parent ORDER BY {order}"
    ):
        near.setdefault(child if up else parent, []).append(parent if up else child)
    return near


def reached(
    near: dict[int, list[int]], start: int, depth: int, limit: int
) -> tuple[list[int], bool]:
    """What `graph` should show, by the plainest search."""
    seen, level, cut = {start: None}, [start], False
    for hops in range(depth + 1):
        found = [one for here in level for one in near.get(here, ()) if one not in seen]
        level = []
        for one in dict.fromkeys(found):
            if hops == depth or len(seen) == limit:
                cut = True
            else:
                seen[one] = None
                level.append(one)
    return list(seen), cut


@pytest.mark.parametrize("direction", ["ancestors", "descendants"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_graph_is_what_a_plain_search_finds(history, direction, ahead, monkeypatch):
    conn, made = history
    if not ahead:  # then every level is read by itself
        monkeypatch.setattr(edges.Edges, "ahead", lambda *given: None)
    dice, near, cuts = random.Random(direction), edges_of(conn, direction), []
    for _ in range(30):
        handle = made.handle(dice)
        depth, limit = dice.choice((0, 1, 7, 50, 10_000)), dice.choice((1, 5, 40, 10_000))
        nodes, drawn, cut = lineage.graph(conn, handle, direction, depth, limit)

        ids, left_out = reached(near, versions.resolve(conn, handle), depth, limit)
        assert nodes == versions.load(conn, ids)
        assert cut == left_out
        shown = [node.handle for node in nodes]
        assert set(drawn) == {
            (parent, node.handle, node.op)
            for node in nodes
            for parent in node.parents
            if parent in shown
        }
        cuts.append(cut)
    assert set(cuts) == {True, False}


def test_a_graph_takes_few_statements_whatever_its_form(history, monkeypatch):
    conn, made = history
    spent: list[str] = []

    def counted(conn: Connection, sql: str, *rest: object, **more: bool) -> list[object]:
        spent.append(sql)
        return execute(conn, sql, *rest, **more)

    def most() -> int:
        """Statements of the dearest graph."""
        worst = 0
        for dice in map(random.Random, range(40)):
            spent.clear()
            lineage.graph(conn, made.handle(dice), "descendants", 50, 500)
            worst = max(worst, len(spent))
        return worst

    monkeypatch.setattr(prepared, "execute", counted)
    assert most() <= 8
    monkeypatch.setattr(edges.Edges, "ahead", lambda *given: None)
    assert most() > 20


@pytest.fixture
def wide(history: tuple[Connection, Synthetic]) -> Iterator[Connection]:
    """All other versions come from the first one as well."""
    conn, _ = history
    execute(conn, "SAVEPOINT wide")
    execute(conn, "INSERT INTO version_parent SELECT id, 9, 1, NULL FROM version WHERE id > 1")
    yield conn
    execute(conn, "ROLLBACK TO wide")


@pytest.mark.parametrize("direction", ["descendants", "both"])
def test_of_very_many_children_no_more_are_read_than_count(wide, direction, monkeypatch):
    def shown() -> list[object]:
        asked = [(depth, limit) for depth in (1, 3, 50) for limit in (1, 20, 150)]
        return [lineage.graph(wide, "act_00000000@0", direction, *one) for one in asked]

    with monkeypatch.context() as whole:
        whole.setattr(edges, "_FEW", 0)
        expected = shown()
    assert shown() == expected

    read: list[int] = []

    def counted(conn: Connection, sql: str, *rest: object, **more: bool) -> list[object]:
        rows: list[object] = execute(conn, sql, *rest, **more)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(prepared, "execute", counted)
    lineage.graph(wide, "act_00000000@0", direction, 50, 20)
    assert sum(read) < 1200
    monkeypatch.setattr(edges, "_FEW", 0)
    read.clear()
    lineage.graph(wide, "act_00000000@0", direction, 50, 20)
    assert sum(read) > VERSIONS


def test_a_record_is_one_that_its_constructor_makes(history):
    conn, made = history
    for dice in map(random.Random, range(20)):
        found = versions.one(conn, versions.resolve(conn, made.handle(dice)))
        again = VersionRecord(**{one.name: getattr(found, one.name) for one in fields(found)})
        assert found == again
        assert isinstance(found.op, Op)
        with pytest.raises(AttributeError):
            found.seq = 1  # type: ignore[misc]  # frozen
