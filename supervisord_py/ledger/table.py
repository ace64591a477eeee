"""Between a Struct and its table: a field is a column of the same name, or of the one that the Struct renames it to.

Booleans are 0 and 1; maps, lists and Structs JSON text; words of an enum text. A damaged JSON cell reads as empty and
any other damaged cell as the field's default: one bad cell must not hide a row.
What changes rows is an *operation*: it takes the connection of the writer, so that several make one transaction.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from supervisord_py.ledger.instants import optional_text, to_seconds

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Ledger

Row = TypeVar("Row", bound=msgspec.Struct)
Operation = Callable[["sqlite3.Connection"], Any]


class Table(Generic[Row]):
    """One table.

    Args:
        name: Of the table.
        row: The Struct; its fields are columns, the table may have more.
        key: The column that names a row.
        moments: Columns that hold Unix seconds as ISO text.
        blobs: Columns that lists leave out.
        computed: Fields that are no columns.
    """

    def __init__(
        self,
        name: str,
        row: type[Row],
        key: str = "id",
        *,
        moments: Sequence[str] = (),
        blobs: Sequence[str] = (),
        computed: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.row = row
        self.key = key
        hints = typing.get_type_hints(row)
        pairs = zip(row.__struct_encode_fields__, row.__struct_fields__, strict=True)
        self._fields = {column: field for column, field in pairs if field not in computed}
        self.columns = tuple(self._fields)
        self._kinds = {column: _base(hints[field]) for column, field in self._fields.items()}
        self._moments = frozenset(moments)
        self._required = {each.name: None for each in msgspec.structs.fields(row) if each.required}
        self._list = ", ".join(f'"{each}"' for each in self.columns)
        self._listed = tuple(each for each in self.columns if each not in blobs)
        self._odd = [(at, each) for at, each in enumerate(self.columns) if self._is_odd(each)]
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
        values: list[Any] = [getattr(row, field) for field in self._fields.values()]
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

    def merge(self, key: object, **changes: Any) -> Operation:
        """Insert a row of these columns, or change them in the one that is there."""
        names = [self.key, *changes]
        news = ", ".join(f'"{each}" = excluded."{each}"' for each in changes)
        sql = f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608  # our own words
        sql += f" ON CONFLICT ({self.key}) DO {'UPDATE SET ' + news if news else 'NOTHING'}"
        values = [key, *(self._cell(name, value) for name, value in changes.items())]
        return lambda connection: connection.execute(sql, values).rowcount

    def delete(self, key: object) -> Operation:
        """Remove a row."""
        sql = f"DELETE FROM {self.name} WHERE {self.key} = ?"  # noqa: S608  # our own words
        return lambda connection: connection.execute(sql, (key,)).rowcount

    # -- questions -------------------------------------------------------------------------------------------------

    async def get(self, ledger: Ledger, key: object) -> Row | None:
        found = await self.find(ledger, f"WHERE {self.key} = ?", key)
        return found[0] if found else None

    async def find(self, ledger: Ledger, where: str = "", *values: object) -> list[Row]:
        """Return the rows that a WHERE, ORDER BY, LIMIT picks."""
        return await self._find(ledger, self.columns, where, values)

    async def listed(self, ledger: Ledger, where: str = "", *values: object) -> list[Row]:
        """Return the same without their blobs."""
        return await self._find(ledger, self._listed, where, values)

    async def _find(self, ledger: Ledger, columns: Sequence[str], where: str, values: Sequence[object]) -> list[Row]:
        names = ", ".join(f'"{each}"' for each in columns)
        sql = f"SELECT {names} FROM {self.name} {where}"  # noqa: S608  # our own words
        return await ledger.read(lambda connection: [self._row(columns, it) for it in connection.execute(sql, values)])

    # -- cells -----------------------------------------------------------------------------------------------------

    def _is_odd(self, name: str) -> bool:
        kind = self._kinds[name]
        is_word = isinstance(kind, type) and issubclass(kind, Enum)
        return name in self._moments or kind is bool or is_word or _is_json(kind)

    def _cell(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in self._moments:
            return optional_text(value)
        kind = self._kinds[name]
        if _is_json(kind):
            return msgspec.json.encode(value, enc_hook=str).decode()
        return int(value) if kind is bool else value.value if isinstance(value, Enum) else value

    def _row(self, columns: Sequence[str], cells: Sequence[Any]) -> Row:
        found: dict[str, Any] = dict(self._required)
        for column, cell in zip(columns, cells, strict=True):
            value = None if cell is None else self._value(column, cell)
            if value is not None:
                found[self._fields[column]] = value
        return self.row(**found)

    def _value(self, column: str, cell: Any) -> Any:
        """Return the value of a cell; None where it is damaged and nothing stands for it."""
        kind = self._kinds[column]
        if column in self._moments:
            return to_seconds(cell)
        if kind is bool:
            return bool(cell)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(cell) if cell in kind._value2member_map_ else None
        return _from_json(cell, kind) if _is_json(kind) else cell


def _base(kind: Any) -> Any:
    """Return a type without its None and its parameters."""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        (kind,) = [each for each in typing.get_args(kind) if each is not type(None)]
    return typing.get_origin(kind) or kind


def _is_json(kind: Any) -> bool:
    return kind in {dict, Mapping, list, tuple} or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _from_json(text: str, kind: Any) -> Any:
    try:
        if kind not in {dict, Mapping, list, tuple}:
            return msgspec.json.decode(text, type=kind)
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:  # of which a ValidationError is one
        value = None
    if kind in {list, tuple}:
        return tuple(value) if isinstance(value, list) else ()
    if kind in {dict, Mapping}:
        return value if isinstance(value, dict) else {}
    return None


def together(*operations: Operation | None) -> Operation:
    """Return an operation that does all of them, or none; returns what the first one returns."""
    wanted = [each for each in operations if each is not None]

    def run(connection: sqlite3.Connection) -> Any:
        results = [each(connection) for each in wanted]
        return results[0] if results else None

    return run
