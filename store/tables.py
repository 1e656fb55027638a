"""The tables of the catalog, as SQLAlchemy Core, for SQLite and PostgreSQL alike.

Times are microseconds since 1970. `epoch` and `owner` (an incarnation) stand on every row that
says who may write, so that several hypervisors can share one catalog later. A foreign key that
would close a circle (an actor's open turn, its parent version) is left out.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: A 64-bit key that the database counts up.
_Id = BigInteger().with_variant(Integer, "sqlite")
_Json = JSON(none_as_null=True)

#: Who holds the data folder: the highest incarnation does.
owner = Table(
    "owner",
    metadata,
    Column("incarnation", _Id, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("claimed_us", BigInteger, nullable=False),
)

segment = Table(
    "segment",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("actor_id", Text, nullable=False),
    Column("parent", ForeignKey("segment.id"), index=True),
    Column("position", BigInteger, nullable=False),
    Column("rooted", Boolean, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("place", BigInteger),  # older segment that its first state belongs to; null: itself
    sqlite_autoincrement=True,  # ids are never used again, as elsewhere
)

#: The segments that rules opened, with the first one of their lane: see `store/lanes.py`.
lane = Table(
    "lane",
    metadata,
    Column("segment", ForeignKey("segment.id"), primary_key=True, autoincrement=False),
    Column("head", BigInteger, nullable=False),  # which is in its lane without a row here
)

#: Places that rules took in beside their actor's own state, by lane.
blend = Table(
    "blend",
    metadata,
    Column("head", ForeignKey("segment.id"), primary_key=True),
    Column("segment", BigInteger, primary_key=True),  # the one that the rule opened
    Column("ord", Integer, primary_key=True),  # as in `version_parent`
    Column("source", BigInteger, nullable=False),  # the segment of the version taken in
    Column("position", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

actor = Table(
    "actor",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("segment", ForeignKey("segment.id"), nullable=False),
    Column("position", BigInteger, nullable=False),  # without the journalled tokens of `turn_id`
    Column("base", BigInteger, nullable=False),
    Column("head", Integer, nullable=False),
    Column("next_seq", Integer, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("drift", Boolean, nullable=False),
    Column("labels", _Json, nullable=False),
    Column("ttl_s", BigInteger),
    Column("parent", BigInteger),  # the version it was forked from
    Column("quarantine", Text),
    Column("turn_id", Text),  # its open turn
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),
    sqlite_with_rowid=False,  # the key is the table's own order: one page less for every fork
)
#: A name belongs to one living actor.
Index(
    "uq_actor_living_name",
    actor.c.name,
    unique=True,
    sqlite_where=actor.c.deleted_us.is_(None),
)

Index(
    "ix_actor_last_name",
    actor.c.name,
    sqlite_where=actor.c.deleted_us.is_not(None),
)
Index(
    "ix_actor_deleted",
    actor.c.deleted_us,
    sqlite_where=actor.c.deleted_us.is_not(None),
)

#: The children of a fork, one row for all that have done nothing yet: see `store/broods.py`. The
#: times, ids and segments of later broods are never lower, so that one index serves all of them.
brood = Table(
    "brood",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),  # of the first child's version
    Column("segment", BigInteger, nullable=False),  # the first child's
    Column("parent", ForeignKey("version.id"), nullable=False, index=True),
    Column("count", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),  # without rows of their own
    Column("hatched", LargeBinary),  # a bit for each that has them; null: none has
    Column("at", BigInteger, nullable=False),  # the time in the first child's id
    Column("salt", BigInteger, nullable=False, index=True),  # the random bits in all their ids
    Column("name", Text),  # of an only child that was given one
    Column("model", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),  # the first child's
    Column("alike", Boolean, nullable=False),  # all have the same seed
    Column("base", BigInteger, nullable=False),
    Column("drift", Boolean, nullable=False),
    Column("labels", _Json),  # null: they have none
    Column("epoch", BigInteger, nullable=False),
    Column("owner", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)
Index(
    "ix_brood_name",
    brood.c.name,
    unique=True,
    sqlite_where=brood.c.name.is_not(None),
)

#: The labels of living actors once more, to search by.
actor_label = Table(
    "actor_label",
    metadata,
    Column("key", Text, primary_key=True),
    Column("actor_id", ForeignKey("actor.id"), primary_key=True, index=True),
    Column("value", Text, nullable=False),
)

#: Tokens at rest, packed behind a checksum: see `store/packing.py`.
token_run = Table(
    "token_run",
    metadata,
    Column("segment", ForeignKey("segment.id"), primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

#: Generated tokens of open turns, one row per group commit (`store/journal.py`).
journal = Table(
    "journal",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

turn = Table(
    "turn",
    metadata,
    Column("id", Text, primary_key=True),
    Column("actor_id", ForeignKey("actor.id"), nullable=False, index=True),
    Column("segment", ForeignKey("segment.id"), nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("settings", _Json, nullable=False),
    Column("generated_from", BigInteger, nullable=False),  # position of its first own token
    Column("position", BigInteger, nullable=False),  # behind the last token folded so far
    Column("journal_after", BigInteger, nullable=False),  # its groups have higher ids
    Column("finish", Text),
    Column("broken", Boolean, nullable=False),
    Column("text", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)
Index(
    "ix_turn_open",
    turn.c.id,
    sqlite_where=turn.c.finish.is_(None),
)

#: What fixed the bits of states: long names, few of them.
build = Table(
    "build",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)

version = Table(
    "version",
    metadata,
    Column("id", _Id, primary_key=True),  # parents have lower ids than children
    Column("actor_id", ForeignKey("actor.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("segment", ForeignKey("segment.id"), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("place", BigInteger, nullable=False),  # the segment its image is kept under
    Column("op", Text, nullable=False),
    Column("hidden", Boolean, nullable=False),
    Column("drift", Boolean, nullable=False),
    Column("build", ForeignKey("build.id")),
    Column("labels", _Json, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    UniqueConstraint("actor_id", "seq"),
    Index(None, "segment", "position"),
    Index(None, "op", "created_us"),
    sqlite_autoincrement=True,
)

#: By what a version is found, beside its kind: see `store/terms.py`. In the order of creation.
version_term = Table(
    "version_term",
    metadata,
    Column("term", Text, primary_key=True),
    Column("created_us", BigInteger, primary_key=True),
    Column("version", ForeignKey("version.id"), primary_key=True, index=True),
    sqlite_with_rowid=False,
)

version_parent = Table(
    "version_parent",
    metadata,
    Column("child", ForeignKey("version.id"), primary_key=True),
    Column("ord", Integer, primary_key=True),  # 0: the version it follows; above: blended ones
    Column("parent", ForeignKey("version.id"), nullable=False, index=True),
    Column("weight", Float),
    sqlite_with_rowid=False,
)

#: What made a version whose state does not follow from tokens.
mutation = Table(
    "mutation",
    metadata,
    Column("version", ForeignKey("version.id"), primary_key=True),
    Column("rule", Text),
    Column("rule_version", Integer),
    Column("params", _Json, nullable=False),
    Column("selection", _Json, nullable=False),
    Column("agent", Text),
    Column("reason", Text),
    Column("before", Text),
)

#: Which layers the mutation that opened a segment touched; -1 is every layer.
touched = Table(
    "touched",
    metadata,
    Column("segment", ForeignKey("segment.id"), primary_key=True),
    Column("layer", Integer, primary_key=True),
    Column("version", ForeignKey("version.id"), nullable=False),
)

image = Table(
    "image",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("nbytes", BigInteger, nullable=False),
    Column("slab", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("layout", Text, nullable=False),
    Column("weights", Text, nullable=False),
    Column("build", Text, nullable=False),
    Column("orphaned_us", BigInteger),  # since when no place names it; it will be freed
)
Index(
    "ix_image_orphaned",
    image.c.orphaned_us,
    sqlite_where=image.c.orphaned_us.is_not(None),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("segment", ForeignKey("segment.id"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("digest", ForeignKey("image.digest"), nullable=False, index=True),
    Column("created_us", BigInteger, nullable=False),
)

tag = Table(
    "tag",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", ForeignKey("version.id"), nullable=False, index=True),
    Column("updated_us", BigInteger, nullable=False),
)

operation = Table(
    "operation",
    metadata,
    Column("key", Text, primary_key=True),
    Column("request", Text, nullable=False),
    Column("turn_id", Text, index=True),
    Column("result", _Json),
    Column("created_us", BigInteger, nullable=False, index=True),
)


def for_postgresql() -> MetaData:
    """The tables as they are made there: with the conditions that indexes have on SQLite.

    They are not written beside those: that alone would load the dialect at every start.
    """
    for table in metadata.tables.values():
        for index in table.indexes:
            where = index.dialect_options["sqlite"]["where"]
            index.dialect_options["postgresql"]["where"] = where
    return metadata
