"""One row of the table of routes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from aiohttp import web

from statevisor.api.auth import Scope
from statevisor.api.call import Call, Reply
from statevisor.api.wire import Body, Query

Method = Literal["GET", "POST", "PATCH", "DELETE"]
Handler = Callable[[Call[Any, Any]], Awaitable[Reply | web.StreamResponse]]


@dataclass(frozen=True)
class Route:
    """What a handler answers to, and with what.

    What it takes stands in its signature alone: `Call[CreateBody, NoQuery]`.
    """

    method: Method
    path: str
    handler: Handler
    scope: Scope
    answer: Any = None  #: a TypedDict; None for files, pages and empty answers
    items: Any = None  #: of a list
    status: int = 200
    told: Any = None  #: what a body with `dry_run` is answered instead, with 200
    media: tuple[str, ...] = ()  #: what it may answer beside JSON and msgpack
    changes: bool = False  #: takes If-Match, and Idempotency-Key if it is a POST
    keeps: bool = False  #: no transaction keeps its Idempotency-Key: the answer is kept behind it
    openai: bool = False  #: errors have OpenAI's shape

    @property
    def name(self) -> str:
        """The operation's id, e.g. "actors_create"."""
        return f"{self.tag}_{self.handler.__name__}"

    @property
    def tag(self) -> str:
        """The noun it belongs to."""
        return self.handler.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """What it does, in one sentence."""
        return " ".join((self.handler.__doc__ or "").split())

    @functools.cached_property
    def body(self) -> type[Body] | None:
        """The model of the body; None if it is a file."""
        found: type[Any] = get_args(get_type_hints(self.handler)["call"])[0]
        return None if found is bytes else found

    @functools.cached_property
    def query(self) -> type[Query]:
        """The model of the query string."""
        found: type[Query] = get_args(get_type_hints(self.handler)["call"])[1]
        return found
