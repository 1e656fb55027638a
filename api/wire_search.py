"""Questions about versions on the wire: which ones, and which one at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Field

from statevisor.api.cursors import AfterVersion
from statevisor.api.wire import LabelFilter, Limit, Name, Note, Query
from statevisor.hypervisor.catalog_port import VersionQuery
from statevisor.hypervisor.vocab import Op

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _is_no_number(value: object) -> object:
    """The library would take a number for seconds since 1970; a large one for milliseconds."""
    if isinstance(value, str) and "-" not in value[1:]:
        raise ValueError("a time reads like 2026-01-02T03:04:05Z")
    return value


Time = Annotated[
    AwareDatetime,
    BeforeValidator(_is_no_number),
    Field(description="ISO 8601 with a time zone, like `…Z`"),
]


def microseconds(time: datetime | None) -> int | None:
    """A time as microseconds since 1970."""
    return None if time is None else (time - _EPOCH) // timedelta(microseconds=1)


def label_pair(label: str | None) -> tuple[str, str | None] | None:
    """A label's key, and its value unless any will do."""
    if label is None:
        return None
    key, equals, value = label.partition("=")
    return key, value if equals else None


class SearchQuery(Query):
    """Filters and page of the list of all versions."""

    tag: Name | None = None
    label: LabelFilter | None = None
    op: Op | None = None
    agent: Note | None = None
    rule: Name | None = None
    since: Annotated[Time | None, Field(description="made at this time or later")] = None
    until: Annotated[Time | None, Field(description="made before this time")] = None
    limit: Limit = 50
    after: AfterVersion | None = None

    def query(self) -> VersionQuery:
        """As the hypervisor is asked."""
        return VersionQuery(
            tag=self.tag,
            label=label_pair(self.label),
            op=self.op,
            agent=self.agent,
            rule=self.rule,
            since_us=microseconds(self.since),
            until_us=microseconds(self.until),
            after=self.after,
            limit=self.limit,
        )


class HeadQuery(Query):
    """A time; none is now."""

    at: Time | None = None
