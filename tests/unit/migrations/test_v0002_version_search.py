"""What the second schema makes of the rows of the first."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from statevisor.migrations.run import _config, upgrade


@pytest.fixture
def old():
    """A database of the first schema with four versions, foreign keys held."""
    engine = sa.create_engine("sqlite://")
    sa.event.listen(engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA foreign_keys=ON"))
    with engine.connect() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "0001")
        for statement in (
            "INSERT INTO segment VALUES (1, 'act_1', NULL, 0, 0, 0, NULL)",
            """INSERT INTO actor VALUES ('act_1', 'alice', 'm', 1, 9, 0, 3, 4, 4, 1, 1, 1, 0, 0,
               '{}', NULL, NULL, NULL, NULL, 1, 1, NULL)""",
            *(
                f"""INSERT INTO version VALUES ({n}, 'act_1', {n}, 1, {n}, 1, 'turn', 0, 0, NULL,
                    '{labels}', 1, 1, {100 + n})"""
                for n, labels in enumerate(("{}", '{"a": "x", "b": "y=z"}', "{}", "{}"))
            ),
            "INSERT INTO version_parent VALUES (1, 0, 0, 'main', NULL), (2, 0, 1, 'main', 0.5)",
            "INSERT INTO version_parent VALUES (2, 1, 0, 'merge', 0.25)",
            "INSERT INTO mutation VALUES (2, 'decay', 1, '{}', '{}', 'ann', NULL, NULL)",
            "INSERT INTO mutation VALUES (3, NULL, NULL, '{}', '{}', NULL, NULL, NULL)",
        ):
            conn.exec_driver_sql(statement)
        yield conn
    engine.dispose()


def test_versions_are_found_by_labels_agent_and_rule(old):
    upgrade(old)

    assert set(old.execute(sa.text("SELECT term, created_us, version FROM version_term"))) == {
        ("label:a", 101, 1),
        ("label:a=x", 101, 1),
        ("label:b", 101, 1),
        ("label:b=y=z", 101, 1),
        ("agent:ann", 102, 2),
        ("rule:decay", 102, 2),
    }


def test_every_edge_is_kept(old):
    edges = sa.text("SELECT child, ord, parent, weight FROM version_parent ORDER BY child, ord")
    before = list(old.execute(edges))
    upgrade(old)

    assert len(before) == 3
    assert list(old.execute(edges)) == before
    assert list(old.execute(sa.text("PRAGMA foreign_key_check"))) == []
