"""A checksum before the tokens of every run: a bit that a disk changes is found and not served."""

from __future__ import annotations

import struct

import sqlalchemy as sa
import xxhash
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

run = sa.table(
    "token_run",
    sa.column("segment", sa.BigInteger),
    sa.column("start", sa.BigInteger),
    sa.column("count", sa.Integer),
    sa.column("kind", sa.Text),
    sa.column("data", sa.LargeBinary),
)
PLACE = struct.Struct("<qqq")
ROWS = 200


def upgrade() -> None:
    conn = op.get_bind()
    here = sa.and_(run.c.segment == sa.bindparam("at"), run.c.start == sa.bindparam("low"))
    change = sa.update(run).where(here).values(data=sa.bindparam("bytes"))
    key = sa.tuple_(run.c.segment, run.c.start)
    after = (-1, -1)
    # By key: rows must not change under a cursor that reads them.
    page = sa.select(run).order_by(run.c.segment, run.c.start).limit(ROWS)
    while rows := conn.execute(page.where(key > sa.tuple_(*after))).all():
        conn.execute(change, [_summed(row) for row in rows])
        after = (rows[-1].segment, rows[-1].start)


def _summed(row: sa.Row) -> dict[str, object]:
    place = PLACE.pack(row.segment, row.start, row.count) + row.kind.encode()
    seed = xxhash.xxh3_64_intdigest(place)
    made = xxhash.xxh3_64_digest(row.data, seed=seed) + row.data
    return {"at": row.segment, "low": row.start, "bytes": made}
