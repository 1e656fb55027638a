"""What the fourth schema finds in the segments and edges of the third."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from statevisor.migrations.run import _config, upgrade

RULES = 2100  #: one behind another: more than two parts


@pytest.fixture
def old():
    """A database of the third schema: a long life of rules, and a fork that blended from it."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "0003")
        life = [(n, "a", n - 1 or None, 5 * n, int(n > 1), n, None) for n in range(1, RULES + 1)]
        fork, blended = RULES + 1, RULES + 2
        life += [(fork, "b", 7, 35, 0, 7, 7), (blended, "b", fork, 40, 1, 8, None)]
        life += [(blended + 1, "c", None, 9, 1, 0, None)]  # an import with nothing below
        conn.exec_driver_sql("INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?)", life)
        conn.exec_driver_sql(
            "INSERT INTO version VALUES (?, ?, ?, ?, ?, ?, 'turn', 0, 0, NULL, '{}', 1, 1, 0)",
            [(at, who, at, at, position, at) for at, who, _, position, *_ in life],
        )
        conn.exec_driver_sql(
            "INSERT INTO version_parent VALUES (?, ?, ?, 'main', NULL)",
            [(blended, 0, fork), (blended, 1, 900), (blended, 2, 2000), (3, 0, 2), (3, 1, 1)],
        )
        yield conn
    engine.dispose()


def test_rules_behind_one_another_are_a_lane(old):
    upgrade(old)

    lanes = dict(map(tuple, old.execute(sa.text("SELECT segment, head FROM lane"))))
    assert lanes == {**dict.fromkeys(range(2, RULES + 1), 1), RULES + 2: RULES + 1}


def test_what_was_blended_in_stands_at_its_lane(old):
    upgrade(old)

    rows = old.execute(sa.text("SELECT * FROM blend ORDER BY head, segment, ord"))
    assert [tuple(row) for row in rows] == [
        (1, 3, 1, 1, 5),
        (RULES + 1, RULES + 2, 1, 900, 4500),
        (RULES + 1, RULES + 2, 2, 2000, 10000),
    ]
