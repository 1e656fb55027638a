"""Where a fork begins: one statement finds what a search from segment to segment does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import NewActor, Origin
from statevisor.hypervisor.ids import actor_id, nth_seed, own_name
from statevisor.store import births, db, origins, prepared, synthetic
from statevisor.store.db import FILE, begin, finish, open_engine
from statevisor.store.prepared import execute
from statevisor.store.scope import Scope
from statevisor.store.tails import Tails

VERSIONS = 1000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("history")
    synthetic.build(folder, VERSIONS)
    engine = open_engine(folder / FILE, connections=1)
    with engine.connect() as made:
        begin(made, write=True)
        execute(made, "UPDATE actor SET drift = 1, base = 2 WHERE segment % 3 = 0")
        execute(made, "UPDATE version SET drift = 1, build = NULL WHERE id % 5 = 0")
        finish(made, commit=True)
        yield made
    engine.dispose()


@pytest.fixture
def scope(history: Connection) -> Iterator[Scope]:
    begin(history, write=True)
    yield Scope(conn=history, now_us=1, incarnation=1, builds={}, keep_keys_us=1, tails=Tails())
    finish(history, commit=False)


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement from now on."""
    found: list[str] = []

    def counted(conn: Connection, sql: str, *rest: object, **more: bool) -> list[object]:
        found.append(sql)
        return execute(conn, sql, *rest, **more)

    for module in (prepared, db):
        monkeypatch.setattr(module, "execute", counted)
    return found


def places(conn: Connection) -> list[tuple[int, int, str]]:
    """Where the newest version of each place stands, and its handle."""
    query = """SELECT segment, position, actor_id || '@' || seq, max(id) FROM version
               GROUP BY segment, position"""
    return [(segment, position, handle) for segment, position, handle, _ in execute(conn, query)]


def test_one_statement_finds_what_the_search_finds(scope, monkeypatch):
    for segment, position, handle in places(scope.conn):
        origin = Origin(segment=segment, position=position, handle=handle)
        named = origins.start(scope, origin)
        bare = Origin(segment=segment, position=position, handle=None)
        assert origins.start(scope, bare) == named
        monkeypatch.setattr(origins, "_standing", lambda scope, origin: None)
        found = origins.start(scope, origin)
        monkeypatch.undo()
        assert named == found


def test_a_version_of_another_segment_is_looked_for_on_the_way(scope):
    query = """SELECT s.id, s.position, p.actor_id || '@' || p.seq, v.id FROM segment s
               JOIN version v ON v.segment = s.id AND v.seq = 0
               JOIN version_parent e ON e.child = v.id JOIN version p ON p.id = e.parent
               WHERE v.op = 'fork'"""
    found = execute(scope.conn, query)
    assert len(found) > 10
    for segment, position, handle, _ in found:
        start = origins.start(scope, Origin(segment=segment, position=position, handle=handle))
        assert (start.here.record.id, start.parent.position) == (segment, position)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("count", [1, 100])
def test_a_fork_is_one_row_however_many_children_it_has(scope, spent, named, count):
    (segment, position, handle), *_ = places(scope.conn)
    origin = Origin(segment=segment, position=position, handle=handle if named else None)
    keys = [actor_id(9 + n, 5) for n in range(count)]
    children = [
        NewActor(id=key, name=own_name(key), model="m", seed=nth_seed(7, n), labels={})
        for n, key in enumerate(keys)
    ]

    births.fork(scope, children, origin, (), None)

    assert [sql.split()[0] for sql in spent] == [
        *("SELECT", "SELECT"),  # where it begins, what is free
        *["SELECT"] * (count > 1),  # the names of the others
        *("UPDATE", "SELECT"),  # ids of segments and versions
        "INSERT",
    ]


@pytest.mark.parametrize("named", [True, False])
def test_a_fork_whose_ids_are_of_another_form_is_four_rows(scope, spent, named):
    (segment, position, handle), *_ = places(scope.conn)
    origin = Origin(segment=segment, position=position, handle=handle if named else None)
    child = NewActor(id="act_new", name="new", model="m", seed=1, labels={})

    births.fork(scope, [child], origin, (), None)

    assert [sql.split()[0] for sql in spent] == ["SELECT", "INSERT", "SELECT", *["INSERT"] * 3]
