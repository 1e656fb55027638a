"""Search for versions: an index by kind and time, and the terms by which a version is found.

Edges become rows of their own key, so that a fork writes no more pages than before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True)

version = sa.table(
    "version",
    sa.column("id", ID),
    sa.column("created_us", sa.BigInteger),
    sa.column("labels", JSON),
)
mutation = sa.table(
    "mutation",
    sa.column("version", ID),
    sa.column("rule", sa.Text),
    sa.column("agent", sa.Text),
)
term = sa.table(
    "version_term",
    sa.column("term", sa.Text),
    sa.column("created_us", sa.BigInteger),
    sa.column("version", ID),
)
ROWS = 1000


def upgrade() -> None:
    op.create_index("ix_version_op_created_us", "version", ["op", "created_us"], unique=False)
    op.create_table(
        "version_term",
        sa.Column("term", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("version", ID, nullable=False),
        sa.ForeignKeyConstraint(["version"], ["version.id"], name="fk_version_term_version"),
        sa.PrimaryKeyConstraint("term", "created_us", "version", name="pk_version_term"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_version_term_version", "version_term", ["version"], unique=False)
    _fill()
    _rebuild_edges()


def _fill() -> None:
    conn = op.get_bind()
    found = conn.execute(
        sa.select(version, mutation.c.rule, mutation.c.agent)
        .select_from(version.outerjoin(mutation, mutation.c.version == version.c.id))
        .where(
            sa.or_(sa.cast(version.c.labels, sa.Text) != "{}", mutation.c.version.is_not(None)),
        )
    )
    for part in found.partitions(ROWS):
        rows = [row for one in part for row in _rows(one)]
        if rows:
            conn.execute(sa.insert(term), rows)


def _rows(one: sa.Row) -> list[dict[str, object]]:
    terms = [f"label:{key}" for key in one.labels]
    terms += [f"label:{key}={value}" for key, value in one.labels.items()]
    terms += [f"agent:{one.agent}"] if one.agent is not None else []
    terms += [f"rule:{one.rule}"] if one.rule is not None else []
    return [
        {"term": text, "created_us": one.created_us, "version": one.id}
        for text in dict.fromkeys(terms)
    ]


def _rebuild_edges() -> None:
    op.drop_index("ix_version_parent_parent", "version_parent")
    op.rename_table("version_parent", "version_parent_old")
    op.create_table(
        "version_parent",
        sa.Column("child", ID, nullable=False),
        sa.Column("ord", sa.Integer(), nullable=False),
        sa.Column("parent", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["child"], ["version.id"], name="fk_version_parent_child"),
        sa.ForeignKeyConstraint(["parent"], ["version.id"], name="fk_version_parent_parent"),
        sa.PrimaryKeyConstraint("child", "ord", name="pk_version_parent"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO version_parent (child, ord, parent, kind, weight)"
        " SELECT child, ord, parent, kind, weight FROM version_parent_old ORDER BY child, ord"
    )
    op.drop_table("version_parent_old")
    op.create_index("ix_version_parent_parent", "version_parent", ["parent"], unique=False)
