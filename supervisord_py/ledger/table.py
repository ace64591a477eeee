"""Between a Struct and its table: a field is a column of the same name, or of the one that the
Struct renames it to.

Booleans are 0 and 1; maps, lists and Structs JSON text; words of an enum text. A damaged cell reads
as the field's default: it must not hide a row. A row with text that is not UTF-8, or without a
value that it needs, is left out and reported (`Ledger.report_unreadable`): the rows beside it must
still be shown. Moments of pipes are UTC, ISO 8601 with milliseconds and `Z`: they sort as the
moments do, so that SQL compares them. What changes rows is an *operation*: it takes the connection
of the writer, so that several make one transaction.
"""

from __future__ import annotations

import sqlite3
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from supervisord_py.ledger.schema import readable_rows
from supervisord_py.ledger.store import Ledger

Row = TypeVar("Row", bound=msgspec.Struct)
Operation = Callable[["sqlite3.Connection"], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Table(Generic[Row]):
    """One table; the fields of the Struct are columns, but for the `computed` ones, and there may
    be more columns.

    `key` is the column that names a row; `moments` hold Unix seconds as ISO text; `blobs` are left
    out of lists.
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
        codecs = {
            column: _codec(hints[field], column in moments)
            for column, field in self._fields.items()
        }
        self._codecs = {column: codec for column, codec in codecs.items() if codec is not None}
        self._required = {each.name: None for each in msgspec.structs.fields(row) if each.required}
        self._needed = frozenset(name for name in self._required if not _admits_none(hints[name]))
        self._stored = {
            column: _stored_type(hints[field], column in self._codecs)
            for column, field in self._fields.items()
        }
        names, marks = (
            ", ".join(f'"{each}"' for each in self.columns),
            ", ".join(["?"] * len(self.columns)),
        )
        self._into = f"INSERT INTO {name} ({names}) VALUES ({marks}) ON CONFLICT ({key}) DO "  # noqa: S608  # our own words
        self._listed = tuple(each for each in self.columns if each not in blobs)

    # -- operations --------------------------------------------------------------------------------

    def insert(self, row: Row, conflict: str = "NOTHING") -> Operation:
        """Insert a row; one whose key is there already stays as it is, or is changed as
        `conflict` says.
        """
        sql = self._into + conflict
        values = self._cells(
            {column: getattr(row, field) for column, field in self._fields.items()}
        )
        return lambda connection: connection.execute(sql, values).rowcount

    def put(self, row: Row, *, keep: Sequence[str] = ()) -> Operation:
        """Insert a row, or replace the one with its key, but for the columns to `keep`."""
        news = (each for each in self.columns if each not in {self.key, *keep})
        return self.insert(
            row, "UPDATE SET " + ", ".join(f'"{each}" = excluded."{each}"' for each in news)
        )

    def update(self, key: object, where: str = "", **changes: Any) -> Operation:
        """Change columns of a row, where the condition holds; returns how many rows that were."""
        news = '"' + '" = ?, "'.join(changes) + '" = ?'
        condition = f" AND {where}" if where else ""
        sql = f"UPDATE {self.name} SET {news} WHERE {self.key} = ?{condition}"  # noqa: S608  # our own words
        values = [*self._cells(changes), key]
        return lambda connection: connection.execute(sql, values).rowcount

    def merge(self, key: object, **changes: Any) -> Operation:
        """Insert a row of these columns, or change them in the one that is there."""
        names = [self.key, *changes]
        news = ", ".join(f'"{each}" = excluded."{each}"' for each in changes)
        sql = f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608  # our own words
        sql += f" ON CONFLICT ({self.key}) DO {'UPDATE SET ' + news if news else 'NOTHING'}"
        values = [key, *self._cells(changes)]
        return lambda connection: connection.execute(sql, values).rowcount

    def delete(self, key: object) -> Operation:
        sql = f"DELETE FROM {self.name} WHERE {self.key} = ?"  # noqa: S608  # our own words
        return lambda connection: connection.execute(sql, (key,)).rowcount

    # -- questions ---------------------------------------------------------------------------------

    async def get(self, ledger: Ledger, key: object) -> Row | None:
        found = await self.find(ledger, f"WHERE {self.key} = ?", key)
        return found[0] if found else None

    async def listed(self, ledger: Ledger, where: str = "", *values: object) -> list[Row]:
        return await self.find(ledger, where, *values, columns=self._listed)

    async def find(
        self, ledger: Ledger, where: str = "", *values: object, columns: Sequence[str] = ()
    ) -> list[Row]:
        """Return the rows that a WHERE, ORDER BY, LIMIT picks."""
        columns = columns or self.columns
        names = ", ".join(f'"{each}"' for each in columns)
        sql = f"SELECT {names} FROM {self.name} {where}"  # noqa: S608  # our own words

        def run(connection: sqlite3.Connection) -> list[Row]:
            cells_of_rows, unreadable = readable_rows(connection, sql, values)
            rows = []
            for cells in cells_of_rows:
                row = self._row(columns, cells)
                if row is None:
                    unreadable += 1
                else:
                    rows.append(row)
            if unreadable:
                ledger.report_unreadable(self.name, unreadable)
            return rows

        return await ledger.read(run)

    # -- cells -------------------------------------------------------------------------------------

    def _cells(self, values: dict[str, Any]) -> list[Any]:
        codecs = self._codecs
        return [
            value if value is None or column not in codecs else codecs[column][0](value)
            for column, value in values.items()
        ]

    def _row(self, columns: Sequence[str], cells: Sequence[Any]) -> Row | None:
        """Return the row of these cells; None where a value is damaged that it cannot be
        without.
        """
        found: dict[str, Any] = dict(self._required)
        for column, cell in zip(columns, cells, strict=True):
            field = self._fields[column]
            # The file says which type a cell has, and a damaged file says anything.
            value = cell if isinstance(cell, self._stored[column]) else None
            codec = self._codecs.get(column)
            if value is not None and codec is not None:
                value = codec[1](value)
            if value is not None:
                found[field] = value
            elif field in self._needed:
                return None
        return self.row(**found)


def _admits_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _stored_type(kind: Any, is_encoded: bool) -> type | tuple[type, ...]:
    """Return the Python types of what SQLite returns for a field; `is_encoded`: it is stored in
    another form.
    """
    if _admits_none(kind):
        (kind,) = [each for each in typing.get_args(kind) if each is not type(None)]
    if kind is float and not is_encoded:
        return (float, int)
    if kind in {int, bool}:
        return int
    return str


def _codec(kind: Any, is_moment: bool) -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
    """Return how a value becomes a cell and back (None: damaged, nothing stands for it); None
    for what SQLite takes.
    """
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        (kind,) = [each for each in typing.get_args(kind) if each is not type(None)]
    if is_moment:
        return to_text, to_seconds
    bare = typing.get_origin(kind) or kind
    if bare is bool:
        return int, bool
    if isinstance(bare, type) and issubclass(bare, Enum):
        return (lambda word: getattr(word, "value", word)), bare._value2member_map_.get
    if bare not in {dict, Mapping, list, tuple} and not (
        isinstance(bare, type) and issubclass(bare, msgspec.Struct)
    ):
        return None

    def decode(text: str) -> Any:
        with suppress(msgspec.DecodeError):  # of which a ValidationError is one
            return msgspec.json.decode(text, type=kind)
        return None

    return lambda value: msgspec.json.encode(value, enc_hook=str).decode(), decode


def together(*operations: Operation | None) -> Operation:
    """Return an operation that does all of them, or none; returns what the first one returns."""
    wanted = [each for each in operations if each is not None]

    def run(connection: sqlite3.Connection) -> Any:
        results = [each(connection) for each in wanted]
        return results[0] if results else None

    return run


def to_text(seconds: float) -> str:
    """Return Unix seconds as text, to the millisecond."""
    moment = _EPOCH + timedelta(milliseconds=round(seconds * 1000.0))
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def to_seconds(text: str | None) -> float | None:
    """Return the Unix seconds of a text, None where there is none or it is damaged."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
