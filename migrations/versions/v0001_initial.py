"""The first schema: actors, segments and their tokens, versions and their edges, images, turns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "image",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("slab", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("weights", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("orphaned_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_image"),
    )
    op.create_index(
        "ix_image_orphaned",
        "image",
        ["orphaned_us"],
        unique=False,
        sqlite_where=sa.text("orphaned_us IS NOT NULL"),
        postgresql_where=sa.text("orphaned_us IS NOT NULL"),
    )
    op.create_table(
        "journal",
        sa.Column("id", ID, autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_journal"),
    )
    op.create_table(
        "operation",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_operation"),
    )
    op.create_index("ix_operation_created_us", "operation", ["created_us"], unique=False)
    op.create_index("ix_operation_turn_id", "operation", ["turn_id"], unique=False)
    op.create_table(
        "owner",
        sa.Column("incarnation", ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("claimed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation", name="pk_owner"),
    )
    op.create_table(
        "segment",
        sa.Column("id", ID, nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("parent", ID, nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("rooted", sa.Boolean(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["parent"], ["segment.id"], name="fk_segment_parent"),
        sa.PrimaryKeyConstraint("id", name="pk_segment"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_segment_actor_id", "segment", ["actor_id"], unique=False)
    op.create_index("ix_segment_parent", "segment", ["parent"], unique=False)
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
    )
    op.create_index(
        "ix_actor_deleted",
        "actor",
        ["deleted_us"],
        unique=False,
        sqlite_where=sa.text("deleted_us IS NOT NULL"),
        postgresql_where=sa.text("deleted_us IS NOT NULL"),
    )
    op.create_index(
        "ix_actor_last_name",
        "actor",
        ["name"],
        unique=False,
        sqlite_where=sa.text("deleted_us IS NOT NULL"),
        postgresql_where=sa.text("deleted_us IS NOT NULL"),
    )
    op.create_index(
        "uq_actor_living_name",
        "actor",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted_us IS NULL"),
        postgresql_where=sa.text("deleted_us IS NULL"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("segment", ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["image.digest"], name="fk_checkpoint_digest"),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_checkpoint_segment"),
        sa.PrimaryKeyConstraint("segment", "position", name="pk_checkpoint"),
    )
    op.create_index("ix_checkpoint_digest", "checkpoint", ["digest"], unique=False)
    op.create_table(
        "token_run",
        sa.Column("segment", ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_token_run_segment"),
        sa.PrimaryKeyConstraint("segment", "start", name="pk_token_run"),
    )
    op.create_table(
        "actor_label",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["actor_id"], ["actor.id"], name="fk_actor_label_actor_id"),
        sa.PrimaryKeyConstraint("key", "actor_id", name="pk_actor_label"),
    )
    op.create_index("ix_actor_label_actor_id", "actor_label", ["actor_id"], unique=False)
    op.create_table(
        "turn",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("segment", ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("settings", JSON, nullable=False),
        sa.Column("generated_from", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("journal_after", sa.BigInteger(), nullable=False),
        sa.Column("finish", sa.Text(), nullable=True),
        sa.Column("broken", sa.Boolean(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["actor_id"], ["actor.id"], name="fk_turn_actor_id"),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_turn_segment"),
        sa.PrimaryKeyConstraint("id", name="pk_turn"),
    )
    op.create_index("ix_turn_actor_id", "turn", ["actor_id"], unique=False)
    op.create_index(
        "ix_turn_open",
        "turn",
        ["id"],
        unique=False,
        sqlite_where=sa.text("finish IS NULL"),
        postgresql_where=sa.text("finish IS NULL"),
    )
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
        sa.Column("build", sa.Text(), nullable=True),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["actor_id"], ["actor.id"], name="fk_version_actor_id"),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_version_segment"),
        sa.PrimaryKeyConstraint("id", name="pk_version"),
        sa.UniqueConstraint("actor_id", "seq", name="uq_version_actor_id_seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_version_segment_position", "version", ["segment", "position"], unique=False)
    op.create_table(
        "mutation",
        sa.Column("version", ID, nullable=False),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("rule_version", sa.Integer(), nullable=True),
        sa.Column("params", JSON, nullable=False),
        sa.Column("selection", JSON, nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["version"], ["version.id"], name="fk_mutation_version"),
        sa.PrimaryKeyConstraint("version", name="pk_mutation"),
    )
    op.create_table(
        "tag",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", ID, nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["version"], ["version.id"], name="fk_tag_version"),
        sa.PrimaryKeyConstraint("name", name="pk_tag"),
    )
    op.create_index("ix_tag_version", "tag", ["version"], unique=False)
    op.create_table(
        "touched",
        sa.Column("segment", ID, nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("version", ID, nullable=False),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_touched_segment"),
        sa.ForeignKeyConstraint(["version"], ["version.id"], name="fk_touched_version"),
        sa.PrimaryKeyConstraint("segment", "layer", name="pk_touched"),
    )
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
    )
    op.create_index("ix_version_parent_parent", "version_parent", ["parent"], unique=False)
