"""A question answered as if what waits for the disk were written already: applied, asked, and taken back.

Law: nothing of it reaches the file. An operation that fails by its own fault is left out; where SQLite gives up the
whole of it, the file alone answers. The question is answered in any case.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator

    T = TypeVar("T")
    Operation = Callable[[sqlite3.Connection], object]


def ask(connection: sqlite3.Connection, waiting: Iterable[Operation], question: Callable[[sqlite3.Connection], T]) -> T:
    """Return the answer to a question, asked after all that waits.

    Args:
        connection: In autocommit mode, in no transaction.
        waiting: Operations in their order; each may run again later.
        question: Reads.

    Raises:
        Exception: What the question raised.
    """
    with _taken_back(connection):
        for operation in waiting:
            if not _applied(connection, operation):
                break
        return question(connection)


@contextmanager
def _taken_back(connection: sqlite3.Connection) -> Iterator[None]:
    """Begin, and roll back. Nobody waits here for another program that writes: then what waits is left out."""
    (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA busy_timeout = {int(patience)}")


def _applied(connection: sqlite3.Connection, operation: Operation) -> bool:
    """Apply one operation, whole or not at all; False where SQLite has given up the transaction, as it may."""
    connection.execute("SAVEPOINT job")
    try:
        operation(connection)
    except Exception:  # whoever queued it is told when it is tried in earnest
        if not connection.in_transaction:
            return False
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")
    return True
