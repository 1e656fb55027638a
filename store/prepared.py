"""Core statements compiled once and run on the driver's own cursor.

A statement through the whole of SQLAlchemy costs ten times what SQLite needs for it, and a turn
makes a dozen. Types are still SQLAlchemy's: values and results go through its processors, so a
statement means the same on every dialect.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    Delete,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    insert,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.selectable import TextualSelect

Process = Callable[[Any], Any]
Params = Mapping[str, Any]

#: Lengths of IN lists; shorter ones are filled up, so that few statements serve all.
_SIZES = (1, 8, 64, 512)
_KEYS = tuple(f"key{n}" for n in range(_SIZES[-1]))


class _Compiled(NamedTuple):
    """A statement for one dialect."""

    sql: str
    values: Callable[[Params], Any]  #: parameters as the driver takes them
    out: tuple[tuple[int, Process], ...]  #: by result column
    row: Callable[[Iterable[Any]], Any]


class Prepared:
    """One statement; parameters are its bind names, rows have its columns as attributes."""

    def __init__(self, core: Select[Any] | TextualSelect | Insert | Update | Delete) -> None:
        self._core = core
        self._compiled: dict[str, _Compiled] = {}

    def all(self, conn: Connection, params: Params) -> list[Any]:
        """Every row."""
        it = self._for(conn.dialect)
        return _rows(it, execute(conn, it.sql, it.values(params)))

    def first(self, conn: Connection, params: Params) -> Any | None:
        """The first row, or None."""
        rows = self.all(conn, params)
        return rows[0] if rows else None

    def scalar(self, conn: Connection, params: Params) -> Any | None:
        """The first column of the first row, or None."""
        rows = self.all(conn, params)
        return rows[0][0] if rows else None

    def one(self, conn: Connection, params: Params) -> Any:
        """The one row that must be there."""
        (row,) = self.all(conn, params)
        return row

    def run(self, conn: Connection, params: Params) -> None:
        """Execute it for its effect."""
        it = self._for(conn.dialect)
        execute(conn, it.sql, it.values(params))

    def many(self, conn: Connection, rows: Iterable[Params]) -> None:
        """Execute it for every row of parameters."""
        it = self._for(conn.dialect)
        values = list(map(it.values, rows))
        if values:
            execute(conn, it.sql, values, many=True)

    def _for(self, dialect: Dialect) -> _Compiled:
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = _compile(self._core, dialect)
        return found


class Numbered(Prepared):
    """An INSERT of all columns but `id`, which the database counts up; not given is null."""

    def __init__(self, table: Table) -> None:
        core = _insert(table, [column.name for column in table.c if column.name != "id"])
        super().__init__(core.returning(table.c.id))
        self._silent = Prepared(core)

    def add(self, conn: Connection, params: Params) -> int:
        """Insert one row and return its id."""
        if not getattr(conn.dialect, "postfetch_lastrowid", False):  # not part of its interface
            return int(self.one(conn, params).id)
        # Measured: to ask SQLite's cursor takes a third less than RETURNING.
        it = self._silent._for(conn.dialect)
        return int(execute(conn, it.sql, it.values(params), numbered=True)[0][0])


class PreparedIn:
    """One query over any number of keys; `make` puts the list of their marks into an IN."""

    def __init__(self, make: Callable[[Sequence[BindParameter[Any]]], Select[Any]]) -> None:
        self._by_size = {
            size: Prepared(make([bindparam(name) for name in _KEYS[:size]])) for size in _SIZES
        }

    def all(self, conn: Connection, keys: Sequence[Any], others: Params | None = None) -> list[Any]:
        """Rows of every key, in as many statements as they need."""
        rows: list[Any] = []
        for at in range(0, len(keys), _SIZES[-1]):
            part = keys[at : at + _SIZES[-1]]
            size = next(size for size in _SIZES if size >= len(part))
            padded = [*part, *[part[-1]] * (size - len(part))]
            marks = dict(zip(_KEYS, padded, strict=False))
            rows += self._by_size[size].all(conn, {**marks, **(others or {})})
        return rows


def execute(
    conn: Connection, sql: str, values: Any = (), *, many: bool = False, numbered: bool = False
) -> list[Any]:
    """Run SQL on the driver's connection and return all its rows. Raises: DBAPIError.

    `numbered`: the one row that is returned holds the id that an INSERT was given.
    """
    pooled = conn.connection.dbapi_connection  # the driver's own: no other stands between
    assert pooled is not None
    cursor: Any = pooled.cursor()
    try:
        (cursor.executemany if many else cursor.execute)(sql, values)
        if numbered:
            return [(cursor.lastrowid,)]
        # A statement left unfinished would hold the transaction open.
        return cursor.fetchall() if cursor.description else []
    except conn.dialect.loaded_dbapi.Error as error:
        errors = conn.dialect.loaded_dbapi.Error
        raise DBAPIError.instance(sql, values, error, errors) from error


def inserting(table: Table) -> Prepared:
    """An INSERT of all columns; one that is not given is null."""
    return Prepared(_insert(table, [column.name for column in table.c]))


def _insert(table: Table, names: Iterable[str]) -> Insert:
    return insert(table).values({name: bindparam(name, None) for name in names})


def _compile(core: Any, dialect: Dialect) -> _Compiled:
    compiled = core.compile(dialect=dialect)
    columns = list(getattr(core, "exported_columns", ()))
    out = [(index, _reading(column, dialect)) for index, column in enumerate(columns)]
    # A column without a name gets one that nobody asks for.
    labels = [getattr(column, "name", "") for column in columns]
    row = namedtuple("Row", labels, rename=True)  # type: ignore[misc]  # known only here
    return _Compiled(
        sql=str(compiled),
        values=_values(compiled, dialect),
        out=tuple((index, process) for index, process in out if process is not None),
        row=partial(tuple.__new__, row),  # `_make`, but for its check of the length
    )


def _values(compiled: Any, dialect: Dialect) -> Callable[[Params], Any]:
    """What brings a statement's parameters into the driver's form.

    Much of a small transaction's time goes here, so whatever a statement does not need is left out.
    """
    names = tuple(compiled.positiontup or compiled.params)
    binds = {name: compiled.binds[name] for name in names}
    fixed = {name: bind.value for name, bind in binds.items() if not bind.required}
    processes = {name: _process(bind, dialect) for name, bind in binds.items()}
    into = tuple((name, process) for name, process in processes.items() if process is not None)
    if compiled.positional and len(names) > 1 and not fixed and not into:
        return itemgetter(*names)

    def values(params: Params) -> Any:
        given = {**fixed, **params}
        for name, process in into:
            given[name] = process(given[name])
        return tuple(map(given.__getitem__, names)) if compiled.positional else given

    return values


def _process(bind: BindParameter[Any], dialect: Dialect) -> Process | None:
    """What makes a parameter's value one of the driver's."""
    if isinstance(bind.type, Boolean):
        return None  # every driver takes it as it is
    process: Process | None = bind.type.dialect_impl(dialect).bind_processor(dialect)
    return process


def _rows(it: _Compiled, found: Sequence[Sequence[Any]]) -> list[Any]:
    if it.out:
        changed = [list(values) for values in found]
        for index, process in it.out:
            for values in changed:
                values[index] = process(values[index])
        found = changed
    return list(map(it.row, found))


def _reading(column: Any, dialect: Dialect) -> Process | None:
    """What makes a column's value of the driver's."""
    process: Process | None = column.type.dialect_impl(dialect).result_processor(dialect, None)
    if process is None or not isinstance(column.type, JSON):
        return process
    parse = process
    # most hold nothing: a third of the time of such a row went into finding that out
    return lambda text: {} if text == "{}" else None if text is None else parse(text)
