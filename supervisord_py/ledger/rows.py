"""Between rows of SQLite and frozen values: the few lines that every noun needs.

Law: a value's fields are the table's columns, by name; JSON columns are decoded when read and a damaged one reads as
empty, because one bad cell must not hide a row.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence


def select(connection: sqlite3.Connection, sql: str, values: Sequence[object] = ()) -> Iterator[dict[str, Any]]:
    """Run a query, and yield each row as a mapping of column to value."""
    cursor = connection.execute(sql, tuple(values))
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def to_json(value: Mapping[str, Any]) -> str:
    """Return JSON text; what JSON does not know is written as text, because a record must never fail."""
    return json.dumps(value, default=str, separators=(",", ":"))


def from_json(text: str | None) -> dict[str, Any]:
    """Return the object of a JSON column, empty when there is none or it is damaged."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
