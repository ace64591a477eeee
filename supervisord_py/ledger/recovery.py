"""A ledger that is damaged: set aside, and what can still be read carried over into a fresh one.

Law: the daemon starts, with the last good rows, and says so; the damaged file is kept. Damage is what SQLite calls
damage; a full disk or a missing permission is not.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.ledger import files
from supervisord_py.ledger.migrations import TABLES, check_version, migrate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DAMAGE = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_PRIMARY_CODE = 0xFF
_FETCH_ROWS = 200


class DamagedError(Exception):
    """The file is not a sound database. The message is SQLite's."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done about a damaged ledger.

    Attributes:
        moved_to: Where the damaged file is now.
        kept: Rows carried over, by table.
        detail: What SQLite said.
    """

    moved_to: Path
    kept: tuple[tuple[str, int], ...]
    detail: str


def is_damage(error: sqlite3.Error) -> bool:
    """Say whether an error means that the file is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # some errors of the module itself carry no code
        return isinstance(error, sqlite3.DatabaseError) and "malformed" in str(error)
    return (code & _PRIMARY_CODE) in _DAMAGE


def open_checked(path: Path) -> sqlite3.Connection:
    """Open, check and migrate; the writer's connection.

    Raises:
        DamagedError: The file is damaged.
        ConfigError: A newer program wrote it.
        sqlite3.Error: It cannot be opened for another reason.
    """
    try:
        connection = files.connect(path)
        try:
            check_version(connection, str(path))
            _check(connection)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        if is_damage(error):
            raise DamagedError(str(error)) from error
        raise
    return connection


def _check(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found is not None and found[0] != "ok":
        raise DamagedError(str(found[0]))


def recover(path: Path, detail: str, now: float) -> tuple[sqlite3.Connection, Recovery]:
    """Set a damaged ledger aside, and open a fresh one with what can be read of it.

    Args:
        path: The ledger.
        detail: What is wrong with it.
        now: Unix seconds, for the name of the file set aside.
    """
    moved = files.move_aside(path, now)
    files.make_private(path)
    fresh = open_checked(path)
    try:
        kept = _salvage(moved, fresh)
    except BaseException:
        fresh.close()
        raise
    return fresh, Recovery(moved, tuple(kept.items()), detail)


def _salvage(moved: Path, fresh: sqlite3.Connection) -> dict[str, int]:
    kept = dict.fromkeys(TABLES, 0)
    with suppress(sqlite3.Error):
        old = sqlite3.connect(moved, isolation_level=None)
        with closing(old):
            for table in TABLES:
                kept[table] = _copy_table(old, fresh, table)
    if fresh.in_transaction:  # the disk gave out in the middle of a table
        fresh.execute("ROLLBACK")
    return kept


def _copy_table(old: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> int:
    """Copy a table from its front, and where that breaks from its back; a page in the middle may be lost."""
    columns = _common_columns(old, fresh, table)
    if not columns:
        return 0
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"  # noqa: S608  # names of our own schema
    fresh.execute("BEGIN IMMEDIATE")
    for order in ("ASC", "DESC"):
        query = f"SELECT {names} FROM {table} NOT INDEXED ORDER BY rowid {order}"  # noqa: S608  # as above
        if _copy(old, fresh, query, insert):
            break
    count = int(fresh.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608  # as above
    fresh.execute("COMMIT")
    return count


def _copy(old: sqlite3.Connection, fresh: sqlite3.Connection, query: str, insert: str) -> bool:
    """Copy rows until they end or the file breaks; return whether all were read."""
    try:
        cursor = old.execute(query)
        while rows := cursor.fetchmany(_FETCH_ROWS):
            _insert(fresh, insert, rows)
    except sqlite3.Error:
        return False
    return True


def _insert(fresh: sqlite3.Connection, insert: str, rows: Iterable[tuple[object, ...]]) -> None:
    for row in rows:
        with suppress(sqlite3.IntegrityError, sqlite3.DataError):  # a value that damage changed beyond its type
            fresh.execute(insert, row)


def _common_columns(old: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> list[str]:
    try:
        there = {row[1] for row in old.execute(f"PRAGMA table_info({table})")}
    except sqlite3.Error:
        return []
    return [row[1] for row in fresh.execute(f"PRAGMA table_info({table})") if row[1] in there]
