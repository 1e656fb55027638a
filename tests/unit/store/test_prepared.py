from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from statevisor.store.db import begin, finish, open_engine
from statevisor.store.prepared import Numbered, Prepared, PreparedIn, execute, inserting

THINGS = Table(
    "things",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("name", Text, unique=True),
    Column("good", Boolean),
    Column("data", JSON(none_as_null=True)),
    Column("count", Integer),
)
INSERT = inserting(THINGS)
BY_NAME = Prepared(select(THINGS).where(THINGS.c.name == bindparam("wanted")))
BY_IDS = PreparedIn(lambda keys: select(THINGS.c.id).where(THINGS.c.id.in_(keys)))


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[Connection]:
    engine = open_engine(tmp_path / "x.db", connections=1)
    with engine.connect() as made:
        THINGS.create(made)
        made.commit()
        begin(made, write=True)
        yield made
        finish(made, commit=False)
    engine.dispose()


def test_an_empty_object_is_each_reader_s_own(conn):
    for number in (1, 2):
        INSERT.run(conn, {"id": number, "name": str(number), "data": {}})
    first, second = (BY_NAME.one(conn, {"wanted": name}).data for name in "12")

    assert first == second == {}
    assert first is not second


def test_values_and_results_keep_their_types(conn):
    INSERT.run(conn, {"id": 1, "name": "a", "good": True, "data": {"x": [1, None]}, "count": 3})
    INSERT.run(conn, {"id": 2, "name": "b"})

    row = BY_NAME.one(conn, {"wanted": "a"})
    assert (row.id, row.good, row.data, row.count) == (1, True, {"x": [1, None]}, 3)
    assert row.good is True
    empty = BY_NAME.one(conn, {"wanted": "b"})
    assert (empty.good, empty.data, empty.count) == (None, None, None)
    assert BY_NAME.first(conn, {"wanted": "c"}) is None
    assert BY_NAME.all(conn, {"wanted": "c"}) == []


def test_an_insert_tells_the_id_it_was_given(conn):
    numbered = Numbered(THINGS)
    INSERT.run(conn, {"id": 7, "name": "before"})
    assert [numbered.add(conn, {"name": name}) for name in "ab"] == [8, 9]
    # where the cursor does not tell, the statement does
    conn.dialect.postfetch_lastrowid = False
    assert numbered.add(conn, {"name": "c"}) == BY_NAME.one(conn, {"wanted": "c"}).id == 10


def test_values_of_the_statement_itself_are_kept(conn):
    INSERT.many(conn, [{"id": n, "name": str(n), "count": n} for n in range(10)])
    last = Prepared(select(THINGS.c.id).where(THINGS.c.count > 4).order_by(THINGS.c.id).limit(2))
    assert [row.id for row in last.all(conn, {})] == [5, 6]
    assert Prepared(select(func.max(THINGS.c.count))).scalar(conn, {}) == 9


@pytest.mark.parametrize("size", [0, 1, 2, 8, 9, 64, 65, 512, 513, 1500])
def test_any_number_of_keys(conn, size):
    INSERT.many(conn, [{"id": n, "name": str(n)} for n in range(1600)])
    found = BY_IDS.all(conn, list(range(size)))
    assert sorted(row.id for row in found) == list(range(size))


def test_errors_are_sqlalchemys(conn):
    INSERT.run(conn, {"id": 1, "name": "a"})
    with pytest.raises(IntegrityError):
        INSERT.run(conn, {"id": 2, "name": "a"})
    with pytest.raises(IntegrityError):
        INSERT.many(conn, [{"id": 3, "name": "c"}, {"id": 3, "name": "d"}])
    with pytest.raises(DBAPIError):
        execute(conn, "SELECT * FROM nothing")


def test_a_missing_parameter_is_refused(conn):
    with pytest.raises(KeyError):
        BY_NAME.first(conn, {})


def test_no_rows_are_no_statement(conn):
    INSERT.many(conn, [])
    assert BY_IDS.all(conn, []) == []
