"""Finding a brood by halves: by what rises from one to the next and has no index.

An index would cost every fork a page; a search takes some twenty steps among a million.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import BigInteger, Connection, func, select, text

from statevisor.store.prepared import Prepared
from statevisor.store.tables import brood

#: What is found so.
RISING = ("segment", "at", "created_us")
_HIGHEST = Prepared(select(func.max(brood.c.id)))


def last_by(conn: Connection, column: str, value: int) -> int:
    """The id of the last brood whose column is not above a value; 0: there is none."""
    highest = _HIGHEST.scalar(conn, {})
    if highest is None:
        return 0
    step = 1 << (int(highest).bit_length() - 1)
    return halves(column).scalar(conn, {"value": value, "step": step, "top": highest}) or 0


@cache
def halves(column: str) -> Prepared:
    """The last brood whose column is not above a value."""
    return Prepared(
        text(
            f"""
    WITH RECURSIVE halves(low, step) AS (
        SELECT 0, CAST(:step AS BIGINT)
        UNION ALL
        SELECT CASE WHEN low + step <= :top
                    AND coalesce((SELECT b.{column} FROM brood b WHERE b.id <= low + step
                                  ORDER BY b.id DESC LIMIT 1), -1) <= :value
               THEN low + step ELSE low END, step / 2
        FROM halves WHERE step > 0
    )
    SELECT (SELECT max(b.id) FROM brood b WHERE b.id <= low) AS id FROM halves
    ORDER BY step LIMIT 1
    """
        ).columns(id=BigInteger)
    )
