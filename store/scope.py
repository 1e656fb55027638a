"""What the operations of one group share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from statevisor.store.tails import Tails


@dataclass(slots=True, kw_only=True)
class Scope:
    """One group's transaction as its operations see it."""

    conn: Connection
    now_us: int
    incarnation: int  #: of the writer, checked against the folder's when the group began
    builds: Mapping[str, str]
    keep_keys_us: int
    tails: Tails
