"""Lanes: what lies on a history without a branch, and what was blended into it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

segment = sa.table(
    "segment",
    sa.column("id", ID),
    sa.column("parent", ID),
    sa.column("rooted", sa.Boolean),
)
lane = sa.table("lane", sa.column("segment", ID), sa.column("head", sa.BigInteger))
ROWS = 1000


def upgrade() -> None:
    op.create_table(
        "lane",
        sa.Column("segment", ID, autoincrement=False, nullable=False),
        sa.Column("head", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["segment"], ["segment.id"], name="fk_lane_segment"),
        sa.PrimaryKeyConstraint("segment", name="pk_lane"),
    )
    op.create_table(
        "blend",
        sa.Column("head", ID, nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("ord", sa.Integer(), nullable=False),
        sa.Column("source", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["head"], ["segment.id"], name="fk_blend_head"),
        sa.PrimaryKeyConstraint("head", "segment", "ord", name="pk_blend"),
        sqlite_with_rowid=False,
    )
    _fill_lanes()
    op.execute(
        "INSERT INTO blend (head, segment, ord, source, position)"
        " SELECT coalesce(l.head, c.segment), c.segment, e.ord, p.segment, p.position"
        " FROM version_parent e JOIN version c ON c.id = e.child JOIN version p ON p.id = e.parent"
        " LEFT JOIN lane l ON l.segment = c.segment WHERE e.ord > 0"
    )


def _fill_lanes() -> None:
    """A segment that a rule opened is in the lane of its parent, which has the lower id."""
    conn = op.get_bind()
    opened = sa.select(segment.c.id, segment.c.parent, lane.c.head).select_from(
        segment.outerjoin(lane, lane.c.segment == segment.c.parent)
    )
    page = opened.where(segment.c.rooted, segment.c.parent.is_not(None)).order_by(segment.c.id)
    after = 0
    while rows := conn.execute(page.where(segment.c.id > after).limit(ROWS)).all():
        heads: dict[int, int] = {}
        for row in rows:
            # a parent of this same page has no row yet
            heads[row.id] = heads.get(row.parent, row.head or row.parent)
        conn.execute(sa.insert(lane), [{"segment": at, "head": head} for at, head in heads.items()])
        after = rows[-1].id
