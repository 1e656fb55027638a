"""The seventh schema leaves the forks of the sixth as they are; later ones are broods."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command

from statevisor.hypervisor.catalog_port import NewActor, Origin
from statevisor.hypervisor.ids import actor_id, own_name
from statevisor.migrations.run import _config
from statevisor.store.catalog import SqlCatalog
from statevisor.store.db import FILE

ROWS = {
    table: f"SELECT * FROM {table} ORDER BY 1, 2"
    for table in ("segment", "actor", "version", "version_parent", "sqlite_sequence")
}


def make_old(folder):
    """A folder of the sixth schema: an actor behind three tokens, and a fork of it."""
    engine = sa.create_engine(f"sqlite:///{folder / FILE}")
    with engine.begin() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "0006")
        for sql in (
            "INSERT INTO segment VALUES (1, 'act_a', NULL, 0, 0, 0, NULL)",
            "INSERT INTO segment VALUES (2, 'act_b', 1, 0, 0, 1, 1)",
            """INSERT INTO actor SELECT actor_id, 'name-' || id, 'm', id, 0, 0, 0, 1, 1, 1, 1, 1,
               0, 0, '{}', NULL, iif(id = 2, 1, NULL), NULL, NULL, 5, 5, NULL FROM segment""",
            """INSERT INTO version SELECT id, actor_id, 0, id, 0, 1, iif(id = 2, 'fork', 'create'),
               0, 0, NULL, '{}', 1, 1, 5 FROM segment""",
            "INSERT INTO version_parent VALUES (2, 0, 1, NULL)",
            "UPDATE sqlite_sequence SET seq = seq + 40",
        ):
            conn.exec_driver_sql(sql)
        before = {table: conn.exec_driver_sql(sql).all() for table, sql in ROWS.items()}
    engine.dispose()
    return before


async def test_old_forks_keep_their_rows_and_new_ones_are_one(tmp_path):
    before = make_old(tmp_path)
    catalog = await SqlCatalog.open(tmp_path)
    engine = sa.create_engine(f"sqlite:///{tmp_path / FILE}")
    with engine.begin() as conn:
        assert {table: conn.exec_driver_sql(sql).all() for table, sql in ROWS.items()} == before

    await catalog.claim("test")
    keys = [actor_id(9 + n, 1) for n in range(4)]
    children = [NewActor(id=key, name=own_name(key), model="m", seed=1, labels={}) for key in keys]
    origin = Origin(segment=2, position=0, handle="name-2@0")
    made = await catalog.fork(children, origin)

    assert [one.segment for one in made] == [43, 44, 45, 46]
    assert {one.parent for one in made} == {"name-2@0"}
    with engine.begin() as conn:
        assert conn.exec_driver_sql("SELECT id, count FROM brood").all() == [(43, 4)]
        assert conn.exec_driver_sql("SELECT count(*) FROM actor").scalar() == 2
    engine.dispose()
    nodes, _, _ = await catalog.lineage("name-1@0", "descendants", 9, 9)
    assert [one.actor_id for one in nodes] == ["act_a", "act_b", *keys]
    assert await catalog.check() == ()
    await catalog.close()
