"""What the third schema makes of the runs of the second."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from statevisor.migrations.run import _config, upgrade
from statevisor.store.packing import pack_tokens, unpack_run

RUNS = 450  #: more than are changed at a time


@pytest.fixture
def old():
    """A database of the second schema with many runs on two segments."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn:
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "0002")
        for n in (1, 2):
            conn.exec_driver_sql(f"INSERT INTO segment VALUES ({n}, 'act_1', NULL, 0, 0, 0, NULL)")
            conn.exec_driver_sql(
                "INSERT INTO token_run VALUES (?, ?, 2, 'prompt', ?)",
                [(n, 2 * k, pack_tokens((n, k))) for k in range(RUNS)],
            )
        yield conn
    engine.dispose()


def test_every_run_gets_its_sum_once(old):
    upgrade(old)

    rows = list(old.execute(sa.text("SELECT * FROM token_run ORDER BY segment, start")))
    assert [list(unpack_run(*row)) for row in rows] == [[n, k] for n in (1, 2) for k in range(RUNS)]
