"""The children of a fork are one row until they do something; those that are there keep theirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "brood",
        sa.Column("id", ID, autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("parent", ID, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("hatched", sa.LargeBinary(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("salt", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("alike", sa.Boolean(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("drift", sa.Boolean(), nullable=False),
        sa.Column("labels", JSON, nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["parent"], ["version.id"], name="fk_brood_parent"),
        sa.PrimaryKeyConstraint("id", name="pk_brood"),
    )
    op.create_index("ix_brood_parent", "brood", ["parent"])
    op.create_index("ix_brood_salt", "brood", ["salt"])
    op.create_index(
        "ix_brood_name",
        "brood",
        ["name"],
        unique=True,
        sqlite_where=sa.text("name IS NOT NULL"),
    )
