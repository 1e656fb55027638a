"""Where a page of a list begins: `after` is the `last_id` of the page before.

What could be no such thing is refused: to begin with the first page again would let a client that
pages by a slip read for ever. An actor may be gone by now and still be paged behind.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from statevisor.hypervisor.errors import InvalidCursor
from statevisor.hypervisor.vocab import ACTOR_PREFIX, parse_handle

_ID = re.compile(rf"{ACTOR_PREFIX}[0-9a-z]{{1,60}}\Z")


def _actor_id(after: str) -> str:
    if not _ID.match(after):
        raise InvalidCursor(f"{after[:140]!r} is no actor's id, as `after` of a list of actors is")
    return after


def _handle(after: str) -> str:
    if parse_handle(after) is None:
        raise InvalidCursor(f"{after[:140]!r} is no handle, as `after` of a list of versions is")
    return after


_SAID = Field(description="the last_id of the page before")
#: Behind an actor.
AfterActor = Annotated[str, AfterValidator(_actor_id), _SAID]
#: Behind a version.
AfterVersion = Annotated[str, AfterValidator(_handle), _SAID]
