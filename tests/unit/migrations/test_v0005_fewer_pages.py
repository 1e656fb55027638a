"""The fifth schema keeps every row of the fourth, and whatever names an actor still finds it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from statevisor.migrations.run import _config, upgrade

ACTORS = 500


@pytest.fixture
def old(tmp_path):
    """A database of the fourth schema that holds its foreign keys to what they say."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    sa.event.listen(engine, "connect", lambda dbapi, _: _bare(dbapi))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "0004")
        numbers = [(n,) for n in range(1, ACTORS + 1)]
        conn.exec_driver_sql("INSERT INTO segment VALUES (?, 'x', NULL, 0, 0, 0, NULL)", numbers)
        conn.exec_driver_sql(
            """INSERT INTO actor SELECT 'act_' || (1000 - id), 'name-' || (id % 400), 'm', id, id,
               0, 0, 1, 1, id * 7, 1, 1, 0, id % 2, '{"k": "v"}', iif(id % 3, NULL, id), NULL, NULL,
               NULL, id, id, iif(id > 400, id, NULL) FROM segment"""
        )
        conn.exec_driver_sql("INSERT INTO actor_label SELECT 'k', id, 'v' FROM actor")
        conn.exec_driver_sql(
            """INSERT INTO version SELECT NULL, id, 0, segment, 0, segment, 'create', 0, 0, NULL,
               '{}', 1, 1, 0 FROM actor"""
        )
    yield engine
    engine.dispose()


def _bare(dbapi):
    dbapi.isolation_level = None
    dbapi.execute("PRAGMA foreign_keys=ON")


def test_no_actor_is_lost_and_none_is_changed(old):
    with old.begin() as conn:
        before = conn.exec_driver_sql("SELECT * FROM actor ORDER BY id").all()
        upgrade(conn)

    with old.begin() as conn:
        assert conn.exec_driver_sql("SELECT * FROM actor ORDER BY id").all() == before
        assert len(before) == ACTORS
        assert conn.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def test_foreign_keys_and_unique_names_hold_as_before(old):
    with old.begin() as conn:
        upgrade(conn)

    for statement, words in (
        ("DELETE FROM actor WHERE id = 'act_999'", "FOREIGN KEY"),
        ("UPDATE actor SET name = 'name-2' WHERE id = 'act_999'", "UNIQUE"),
        ("INSERT INTO actor_label VALUES ('k', 'act_nobody', 'v')", "FOREIGN KEY"),
    ):
        with pytest.raises(sa.exc.IntegrityError, match=words), old.begin() as conn:
            conn.exec_driver_sql(statement)
