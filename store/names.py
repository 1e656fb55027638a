"""What an actor is called in what others read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, case


def shown_name(row: Any) -> ColumnElement[str]:
    """An actor's name as others read it: a deleted one shows its id, which alone still finds it."""
    return case((row.c.deleted_us.is_not(None), row.c.id), else_=row.c.name)
