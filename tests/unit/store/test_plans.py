"""How SQLite runs every statement of the catalog, with statistics and without."""

from __future__ import annotations

import importlib
import pkgutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql, sqlite

import statevisor.store
from statevisor.store import actors, halves, rosters, search, sweep
from statevisor.store.db import migrate
from statevisor.store.prepared import Prepared, PreparedIn, _compile

SEGMENTS = 3000

#: The join form of the walk up the segments, which must not be used.
TRAP = """
    WITH RECURSIVE path(id) AS (
        SELECT ?
        UNION ALL
        SELECT s.parent FROM path JOIN segment s ON s.id = path.id WHERE s.parent IS NOT NULL
    )
    SELECT id FROM path
"""

#: Statements that read a whole table on purpose, and which one.
WHOLE = {
    "checkpoints._ALL": {"image"},
    "actors._TAKE_OVER": {"actor"},
    "actors._COUNT": {"actor"},
    "broods._COUNT": {"brood"},
    "hatching._TAKE_OVER": {"brood"},
    "keeping._WAITING": {"brood"},
    "rosters._RECENT": {"actor"},  # once, when a server starts
    "fsck._AWAITING": {"actor"},
    "keeping._SNAPSHOTS": {"version"},
    "keeping._STANDS": {"actor"},
    "journal._OPEN": {"turn"},  # by an index of the open ones
    "turns._OPEN": {"turn"},
}


def statements() -> dict[str, Prepared]:
    found: dict[str, Prepared] = {}
    for module in pkgutil.iter_modules(statevisor.store.__path__):
        loaded = importlib.import_module(f"statevisor.store.{module.name}")
        for name, value in vars(loaded).items():
            key = f"{module.name}.{name}"
            if isinstance(value, Prepared):
                found[key] = value
            elif isinstance(value, PreparedIn):
                found |= {f"{key}[{size}]": one for size, one in value._by_size.items()}
    every = frozenset({"model", "part", "label", "value"})
    found |= {f"sweep._PURGE[{n}]": one for n, one in enumerate(sweep._PURGE)}
    found["rosters._pages"] = rosters._pages(every)
    found["rosters._chosen"] = rosters._chosen(every)._by_size[8]
    found |= {f"search._by_terms({n})": search._by_terms(n, n > 1) for n in (1, 2, 3)}
    found["search._by_kind"] = search._by_kind()
    found |= {f"halves.halves({one})": halves.halves(one) for one in halves.RISING}
    found["actors._setting"] = actors._setting("name", "labels", "position")
    return found


STATEMENTS = statements()


@pytest.fixture(scope="module", params=["with statistics", "without"])
def db(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    path: Path = migrate(tmp_path_factory.mktemp("plans"))
    # a plan that is kept would not see that an index is gone
    made = sqlite3.connect(path, isolation_level=None, cached_statements=0)
    made.execute("BEGIN")
    for n in range(1, SEGMENTS + 1):
        parent = n // 3 or None
        made.execute(
            "INSERT INTO segment VALUES (?, ?, ?, ?, 0, ?, NULL)", (n, f"a{n}", parent, n, n)
        )
        made.execute("INSERT INTO token_run VALUES (?, ?, 1, 'prompt', x'00')", (n, n))
    made.execute(
        """INSERT INTO actor SELECT 'a' || id, 'n' || id, 'm', id, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0,
           '{}', NULL, NULL, NULL, NULL, 0, 0, iif(id % 100, NULL, 1) FROM segment"""
    )
    made.execute("INSERT INTO actor_label SELECT 'k' || (id % 50), 'a' || id, 'v' FROM segment")
    made.execute(
        """INSERT INTO version SELECT id, 'a' || id, 0, id, id, id, 'fork', 0, 0, NULL, '{}',
           1, 1, 0 FROM segment"""
    )
    made.execute(
        """INSERT INTO brood SELECT id, id, id / 3, 1, 1, NULL, id, id,
           iif(id % 2, NULL, 'b' || id), 'm', 1, 0, 0, 0, NULL, 1, 1, id FROM segment
           WHERE id > 3"""
    )
    made.execute("INSERT INTO version_parent SELECT id, 0, id / 3, NULL FROM segment WHERE id > 3")
    made.execute("INSERT INTO touched SELECT id, -1, id FROM segment WHERE id % 7 = 0")
    made.execute("INSERT INTO image SELECT 'd' || id, 1, 0, 0, 1, 'l', 'w', 'b', NULL FROM segment")
    made.execute("INSERT INTO checkpoint SELECT id, id, 'd' || id, 0 FROM segment")
    made.execute(
        "INSERT INTO mutation SELECT id, 'r', 1, '{}', '{}', NULL, NULL, NULL FROM segment"
    )
    made.execute("INSERT INTO version_term SELECT 'agent:' || (id % 9), 0, id FROM segment")
    made.execute("INSERT INTO version_term SELECT 'rule:r', 0, id FROM segment")
    made.execute("INSERT INTO tag SELECT 't' || id, id, 0 FROM segment")
    made.execute("INSERT INTO operation SELECT 'k' || id, 'r', 't' || id, '{}', id FROM segment")
    made.execute("INSERT INTO journal SELECT id, 1, x'00' FROM segment")
    made.execute(
        """INSERT INTO turn SELECT 't' || id, 'a' || id, id, 0, 0, '{}', 0, 0, 0, 'stop', 0, '', 1,
           1, 0 FROM segment"""
    )
    made.execute("COMMIT")
    if request.param == "with statistics":
        made.execute("ANALYZE")
    yield made
    made.close()


def plan(db: sqlite3.Connection, sql: str, values: object) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


def test_the_catalog_has_statements():
    assert len(STATEMENTS) > 60


#: What a recursion has found so far is read as a whole; that it stays small is its own affair.
RECURSIONS = {"path", "up", "halves", "h", "line", "near", "CONSTANT"}

#: Statements whose order must come from an index: a page may not sort what it does not show.
PAGES = [name for name in STATEMENTS if name.startswith("search._by")]


def faults(db: sqlite3.Connection, name: str) -> list[str]:
    """Steps of a statement's plan that grow with a table."""
    it = _compile(STATEMENTS[name]._core, sqlite.dialect())
    steps = plan(db, it.sql, [1] * it.sql.count("?"))
    allowed = WHOLE.get(name, set()) | RECURSIONS
    return [
        step
        for step in steps
        if "BLOOM" in step
        or "AUTOMATIC" in step
        or (step.startswith("SCAN") and step.split()[1] not in allowed)
        or (name in PAGES and "TEMP B-TREE" in step)
    ]


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_builds_a_filter_or_reads_a_whole_table(db, name):
    assert faults(db, name) == []


@pytest.mark.parametrize(
    ("index", "name"),
    [
        ("ix_version_segment_position", "versions._AT"),
        ("ix_version_op_created_us", "search._by_kind"),
        ("ix_version_parent_parent", "edges._DOWN[8]"),
        ("ix_segment_parent", "sweep._DEAD"),
        ("ix_tag_version", "versions._TAGS[8]"),
        ("ix_brood_parent", "brood_versions._BELOW[8]"),
        ("ix_brood_salt", "broods._OF_ID"),
        ("ix_brood_name", "broods._OF_NAME"),
    ],
)
def test_without_its_index_a_statement_is_at_fault(db, index, name):
    db.execute("BEGIN")
    try:
        db.execute(f"DROP INDEX {index}")
        assert faults(db, name)
    finally:
        db.execute("ROLLBACK")
    assert faults(db, name) == []


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 38), reason="no Bloom filters yet")
def test_the_join_form_would_build_one(db):
    db.execute("ANALYZE")
    assert [step for step in plan(db, TRAP, [SEGMENTS]) if "BLOOM" in step]


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_postgresql_too(name):
    sql = str(STATEMENTS[name]._core.compile(dialect=postgresql.dialect()))
    assert sql.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH RECURSIVE"))
    assert "?" not in sql
