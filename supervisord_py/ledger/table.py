"""Between a Struct and its table: a field is a column of the same name.

Booleans are 0 and 1, maps and lists JSON text. A damaged JSON cell reads as empty: one bad cell must not hide a row.
What changes rows is an *operation*: it takes the connection of the writer, so that several make one transaction.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Ledger

Row = TypeVar("Row", bound=msgspec.Struct)
Operation = Callable[["sqlite3.Connection"], Any]


class Table(Generic[Row]):
    """One table.

    Args:
        name: Of the table.
        row: The Struct; all of its fields are columns, the table may have more.
        key: The column that names a row.
    """

    def __init__(self, name: str, row: type[Row], key: str = "id") -> None:
        self.name = name
        self.row = row
        self.key = key
        hints = typing.get_type_hints(row)
        self.columns = tuple(row.__struct_fields__)
        self._flags = frozenset(each for each in self.columns if _base(hints[each]) is bool)
        self._json = {each: _base(hints[each]) for each in self.columns if _is_json(_base(hints[each]))}
        self._list = ", ".join(f'"{each}"' for each in self.columns)
        self._odd = [(at, each) for at, each in enumerate(self.columns) if each in self._flags or each in self._json]
        """Columns whose value is not what SQLite takes."""

    # -- operations ------------------------------------------------------------------------------------------------

    def insert(self, row: Row) -> Operation:
        """Insert a row; one whose key is there already stays as it is."""
        return self._insert(row, "NOTHING")

    def put(self, row: Row, *, keep: Sequence[str] = ()) -> Operation:
        """Insert a row, or replace the one with its key, but for the columns to `keep`."""
        news = (each for each in self.columns if each not in {self.key, *keep})
        return self._insert(row, "UPDATE SET " + ", ".join(f'"{each}" = excluded."{each}"' for each in news))

    def _insert(self, row: Row, conflict: str) -> Operation:
        marks = ", ".join(["?"] * len(self.columns))
        sql = f"INSERT INTO {self.name} ({self._list}) VALUES ({marks}) ON CONFLICT ({self.key}) DO {conflict}"  # noqa: S608  # our own words
        values: list[Any] = list(msgspec.structs.astuple(row))
        for at, name in self._odd:
            values[at] = self._cell(name, values[at])
        return lambda connection: connection.execute(sql, values).rowcount

    def update(self, key: object, where: str = "", **changes: Any) -> Operation:
        """Change columns of a row, where the condition holds; returns how many rows that were."""
        news = '"' + '" = ?, "'.join(changes) + '" = ?'
        condition = f" AND {where}" if where else ""
        sql = f"UPDATE {self.name} SET {news} WHERE {self.key} = ?{condition}"  # noqa: S608  # our own words
        for _, name in self._odd:
            if name in changes:
                changes[name] = self._cell(name, changes[name])
        values = [*changes.values(), key]
        return lambda connection: connection.execute(sql, values).rowcount

    def delete(self, key: object) -> Operation:
        """Remove a row."""
        sql = f"DELETE FROM {self.name} WHERE {self.key} = ?"  # noqa: S608  # our own words
        return lambda connection: connection.execute(sql, (key,)).rowcount

    # -- questions -------------------------------------------------------------------------------------------------

    async def get(self, ledger: Ledger, key: object) -> Row | None:
        """Return one row."""
        found = await self.find(ledger, f"WHERE {self.key} = ?", key)
        return found[0] if found else None

    async def find(self, ledger: Ledger, where: str = "", *values: object) -> list[Row]:
        """Return the rows that a WHERE, ORDER BY, LIMIT picks."""
        sql = f"SELECT {self._list} FROM {self.name} {where}"  # noqa: S608  # our own words
        return await ledger.read(lambda connection: [self._row(each) for each in connection.execute(sql, values)])

    # -- cells -----------------------------------------------------------------------------------------------------

    def _cell(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in self._json:
            return msgspec.json.encode(value, enc_hook=str).decode()
        return int(value) if name in self._flags else value

    def _row(self, cells: Sequence[Any]) -> Row:
        found = dict(zip(self.columns, cells, strict=True))
        for name in self._flags:
            found[name] = None if found[name] is None else bool(found[name])
        for name, kind in self._json.items():
            if found[name] is not None:
                found[name] = _from_json(found[name], kind)
        return self.row(**found)


def _base(kind: Any) -> Any:
    """Return a type without its None and its parameters."""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        (kind,) = [each for each in typing.get_args(kind) if each is not type(None)]
    return typing.get_origin(kind) or kind


def _is_json(kind: Any) -> bool:
    return kind in {dict, Mapping, list, tuple}


def _from_json(text: str, kind: Any) -> Any:
    empty: Any = () if kind in {list, tuple} else {}
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return empty
    if isinstance(value, list):
        return tuple(value) if kind in {list, tuple} else empty
    return value if isinstance(value, dict) and kind in {dict, Mapping} else empty


def together(*operations: Operation | None) -> Operation:
    """Return an operation that does all of them, or none; returns what the first one returns."""
    wanted = [each for each in operations if each is not None]

    def run(connection: sqlite3.Connection) -> Any:
        results = [each(connection) for each in wanted]
        return results[0] if results else None

    return run
