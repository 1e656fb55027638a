"""Names of builds are written once, and an edge no longer says what its order says."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "build",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_build"),
        sa.UniqueConstraint("name", name="uq_build_name"),
    )
    op.execute(
        "INSERT INTO build (name) SELECT build FROM version WHERE build IS NOT NULL"
        " GROUP BY build ORDER BY min(id)"
    )
    op.drop_column("version_parent", "kind")
    _rebuild_versions()


def _rebuild_versions() -> None:
    # Other tables name this one: what they miss while it is gone must not be looked for yet. It is
    # looked for when the rows go, and without an index by reading all of `touched` for each.
    op.execute("PRAGMA defer_foreign_keys=ON")
    op.create_index("ix_touched_version", "touched", ["version"])
    op.execute("CREATE TEMPORARY TABLE version_old AS SELECT * FROM version")
    op.execute(
        "CREATE TEMPORARY TABLE counted AS SELECT seq FROM sqlite_sequence WHERE name = 'version'"
    )
    op.drop_table("version")
    op.create_table(
        "version",
        sa.Column("id", ID, nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("segment", ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        sa.Column("drift", sa.Boolean(), nullable=False),
        sa.Column("build", ID, nullable=True),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["actor_id"], ["actor.id"], name="fk_version_actor_id"),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_version_segment"),
        sa.ForeignKeyConstraint(["build"], ["build.id"], name="fk_version_build"),
        sa.PrimaryKeyConstraint("id", name="pk_version"),
        sa.UniqueConstraint("actor_id", "seq", name="uq_version_actor_id_seq"),
        sqlite_autoincrement=True,
    )
    op.execute(
        "INSERT INTO version SELECT id, actor_id, seq, segment, position, place, op, hidden, drift,"
        " (SELECT b.id FROM build b WHERE b.name = version_old.build), labels, epoch, owner,"
        " created_us FROM version_old ORDER BY id"
    )
    # no id is used again, also not that of a version that was taken out
    op.execute("DELETE FROM sqlite_sequence WHERE name = 'version'")
    op.execute("INSERT INTO sqlite_sequence SELECT 'version', seq FROM counted")
    op.execute("DROP TABLE counted")
    op.execute("DROP TABLE version_old")
    op.drop_index("ix_touched_version", "touched")
    op.create_index("ix_version_segment_position", "version", ["segment", "position"])
    op.create_index("ix_version_op_created_us", "version", ["op", "created_us"])
