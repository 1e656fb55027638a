"""The sixth schema keeps every version of the fifth and the name of its build."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from statevisor.migrations.run import _config, upgrade

VERSIONS = 600
ROWS = """SELECT v.id, v.actor_id, v.seq, v.segment, v.position, v.place, v.op, v.hidden, v.drift,
          {build}, v.labels, v.epoch, v.owner, v.created_us FROM version v {join} ORDER BY v.id"""
OLD = ROWS.format(build="v.build", join="")
NEW = ROWS.format(build="b.name", join="LEFT JOIN build b ON b.id = v.build")


@pytest.fixture
def old(tmp_path):
    """A database of the fifth schema that holds its foreign keys to what they say."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    sa.event.listen(engine, "connect", lambda dbapi, _: _bare(dbapi))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "0005")
        numbers = [(n,) for n in range(1, VERSIONS + 1)]
        conn.exec_driver_sql("INSERT INTO segment VALUES (?, 'a', NULL, 0, 0, 0, NULL)", numbers)
        conn.exec_driver_sql(
            """INSERT INTO actor VALUES ('a', 'n', 'm', 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, '{}', NULL,
               NULL, NULL, NULL, 0, 0, NULL)"""
        )
        conn.exec_driver_sql(
            """INSERT INTO version SELECT id, 'a', id, id, id * 10, id, 'turn', id % 2, id % 3 = 0,
               iif(id % 7, 'build-' || (id % 5), NULL), '{"k": 1}', id, 2, id * 3 FROM segment"""
        )
        conn.exec_driver_sql("INSERT INTO touched SELECT id, -1, id FROM version WHERE id % 2")
        conn.exec_driver_sql(
            """INSERT INTO version_parent SELECT id, 0, id - 1, 'main', NULL FROM version
               WHERE id > 1"""
        )
        conn.exec_driver_sql("INSERT INTO version_parent VALUES (9, 1, 4, 'merge', 0.5)")
        conn.exec_driver_sql("UPDATE sqlite_sequence SET seq = 5000 WHERE name = 'version'")
    yield engine
    engine.dispose()


def _bare(dbapi):
    dbapi.isolation_level = None
    dbapi.execute("PRAGMA foreign_keys=ON")


def test_no_version_is_lost_and_none_is_changed(old):
    with old.begin() as conn:
        before = conn.exec_driver_sql(OLD).all()
        upgrade(conn)

    with old.begin() as conn:
        assert conn.exec_driver_sql(NEW).all() == before
        assert len(before) == VERSIONS
        assert {row[9] for row in before} == {None, *(f"build-{n}" for n in range(5))}
        assert conn.exec_driver_sql("SELECT count(*) FROM build").scalar() == 5
        assert conn.exec_driver_sql("SELECT count(*) FROM touched").scalar() == VERSIONS // 2
        edges = conn.exec_driver_sql("SELECT * FROM version_parent WHERE child = 9 ORDER BY ord")
        assert edges.all() == [(9, 0, 8, None), (9, 1, 4, 0.5)]
        assert conn.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def test_ids_go_on_behind_those_that_were_used(old):
    with old.begin() as conn:
        upgrade(conn)
        conn.exec_driver_sql(
            "INSERT INTO version SELECT NULL, 'a', 9999, 1, 0, 1, 'turn', 0, 0, 1, '{}', 1, 1, 0"
        )
        assert conn.exec_driver_sql("SELECT max(id) FROM version").scalar() == 5001

    with pytest.raises(sa.exc.IntegrityError, match="FOREIGN KEY"), old.begin() as conn:
        conn.exec_driver_sql("UPDATE version SET build = 77")
