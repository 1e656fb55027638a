from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import statevisor.migrations
from statevisor.migrations.run import NewerSchema, current, head, upgrade
from statevisor.store.tables import metadata

FOLDER = Path(statevisor.migrations.__path__[0])


@pytest.fixture
def conn():
    engine = sa.create_engine("sqlite://")
    with engine.connect() as made:
        yield made
    engine.dispose()


def schema(conn: sa.Connection, *, alembic: bool = False) -> dict[str, set[str]]:
    """Every table and index with the parts of its definition."""
    rows = conn.execute(
        sa.text(
            "SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"
            + ("" if alembic else " AND name NOT LIKE 'alembic%'")
        )
    )
    return {
        name: {part.strip() for part in re.split(r",\s*\n|\n", sql) if part.strip()}
        for name, sql in rows
    }


def test_an_empty_database_becomes_what_the_tables_say(conn):
    assert current(conn) is None
    upgrade(conn)

    assert current(conn) == head()
    context = MigrationContext.configure(conn, opts={"compare_type": True})
    assert compare_metadata(context, metadata) == []
    migrated = schema(conn)
    other = sa.create_engine("sqlite://")
    with other.connect() as fresh:
        metadata.create_all(fresh)
        assert migrated == schema(fresh)
    other.dispose()


def test_the_comparison_sees_a_missing_index_column_and_constraint(conn):
    upgrade(conn)
    before = schema(conn)
    conn.execute(sa.text("DROP INDEX ix_version_segment_position"))
    conn.execute(sa.text("ALTER TABLE tag DROP COLUMN updated_us"))
    assert len(compare_metadata(MigrationContext.configure(conn), metadata)) == 2
    changed = {name for name in before if before[name] != schema(conn).get(name)}
    assert changed == {"ix_version_segment_position", "tag"}


def test_upgrading_again_does_nothing(conn):
    upgrade(conn)
    before = schema(conn)
    conn.execute(sa.text("INSERT INTO owner VALUES (1, 'x', 0)"))
    upgrade(conn)
    assert schema(conn) == before
    assert conn.scalar(sa.text("SELECT count(*) FROM owner")) == 1


def test_a_database_of_the_future_is_refused(conn):
    upgrade(conn)
    conn.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerSchema):
        upgrade(conn)


@pytest.mark.parametrize("newest", [None, metadata], ids=["by migrations", "at once"])
def test_an_upgrade_that_fails_leaves_nothing(tmp_path, newest):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    sa.event.listen(engine, "connect", lambda dbapi, _: setattr(dbapi, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as made, made.begin() as transaction:
        upgrade(made, newest)
        assert current(made) == head()
        transaction.rollback()
    with engine.begin() as made:
        assert current(made) is None
        assert schema(made, alembic=True) == {}
    engine.dispose()


@pytest.mark.parametrize("path", sorted((FOLDER / "versions").glob("v*.py")), ids=lambda p: p.name)
def test_a_migration_stands_on_its_own(path):
    imports = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imports <= {"__future__", "sqlalchemy", "alembic", "struct", "xxhash"}


def test_migrations_form_one_line():
    from alembic.script import ScriptDirectory

    from statevisor.migrations.run import _config

    script = ScriptDirectory.from_config(_config())
    assert len(script.get_heads()) == 1
    assert len(script.get_bases()) == 1
    files = sorted(path.name for path in (FOLDER / "versions").glob("v*.py"))
    assert [f"v{revision.revision}" for revision in reversed(list(script.walk_revisions()))] == [
        name[:5] for name in files
    ]


def test_the_head_is_the_one_that_alembic_finds():
    from alembic.script import ScriptDirectory

    from statevisor.migrations.run import _config

    assert head() == ScriptDirectory.from_config(_config()).get_current_head()


def test_a_database_that_is_up_to_date_needs_no_alembic(conn, monkeypatch):
    upgrade(conn)
    monkeypatch.setitem(sys.modules, "alembic", None)
    upgrade(conn)
    assert current(conn) == head()


def test_a_new_database_needs_no_alembic_and_is_the_same(conn, monkeypatch):
    upgrade(conn)
    migrated = schema(conn, alembic=True)
    assert "alembic_version" in migrated
    monkeypatch.setitem(sys.modules, "alembic", None)
    engine = sa.create_engine("sqlite://")
    with engine.connect() as fresh:
        upgrade(fresh, metadata)
        assert current(fresh) == head()
        assert schema(fresh, alembic=True) == migrated
    engine.dispose()


def test_a_database_with_strange_tables_is_not_taken_for_new(conn):
    conn.execute(sa.text("CREATE TABLE stranger (id INTEGER)"))
    upgrade(conn, metadata)
    assert current(conn) == head()
    assert "stranger" in schema(conn)
