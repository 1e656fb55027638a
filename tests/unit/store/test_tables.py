"""The tables are the same for SQLite and PostgreSQL, and a start pays for SQLite alone."""

from __future__ import annotations

import subprocess
import sys

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from statevisor.store.tables import for_postgresql


def test_indexes_have_the_same_conditions_on_both() -> None:
    found = 0
    for table in for_postgresql().tables.values():
        for index in table.indexes:
            here = str(CreateIndex(index).compile(dialect=sqlite.dialect()))
            there = str(CreateIndex(index).compile(dialect=postgresql.dialect()))
            assert here == there
            found += " WHERE " in here
    assert found >= 5


def test_the_other_dialect_is_not_loaded() -> None:
    program = (
        "import sys\nimport statevisor.store.catalog\n"
        "print('sqlalchemy.dialects.postgresql' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout == "False\n"
