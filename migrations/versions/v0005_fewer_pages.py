"""Fewer pages for every fork: actors in the order of their key, no index of segments by actor."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.drop_index("ix_segment_actor_id", "segment")
    if op.get_bind().dialect.name == "sqlite":  # elsewhere a table has no order to choose
        _rebuild_actors()


def _rebuild_actors() -> None:
    # Other tables name this one: what they miss while it is gone must not be looked for yet.
    op.execute("PRAGMA defer_foreign_keys=ON")
    op.execute("CREATE TEMPORARY TABLE actor_old AS SELECT * FROM actor")
    op.drop_table("actor")
    op.create_table(
        "actor",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("segment", ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.Integer(), nullable=False),
        sa.Column("next_seq", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("drift", sa.Boolean(), nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("ttl_s", sa.BigInteger(), nullable=True),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("quarantine", sa.Text(), nullable=True),
        sa.Column("turn_id", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("deleted_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_actor_segment"),
        sa.PrimaryKeyConstraint("id", name="pk_actor"),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO actor SELECT * FROM actor_old ORDER BY id")
    op.execute("DROP TABLE actor_old")
    for name, column, unique, where in (
        ("uq_actor_living_name", "name", True, "deleted_us IS NULL"),
        ("ix_actor_last_name", "name", False, "deleted_us IS NOT NULL"),
        ("ix_actor_deleted", "deleted_us", False, "deleted_us IS NOT NULL"),
    ):
        there = {"sqlite_where": sa.text(where), "postgresql_where": sa.text(where)}
        op.create_index(name, "actor", [column], unique=unique, **there)
