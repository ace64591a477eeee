"""Sessions of kernels: what each last was, so that it is known by name after it stopped and after a restart.

Law: the last word counts, writing it never makes anybody wait, and it decides nothing: what lives is asked of the
keeper. When a session was made first is never overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.rows import from_json, select, to_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from supervisord_py.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class KernelSessionRow:
    """One session. Times are Unix seconds.

    Attributes:
        id: The `{k}` of the routes.
        interpreter: Path, `spec:NAME`, or `bash`.
        owner: `session`, `per_call`, `jupyter` or `jupyter_api`.
        created_at: When the first kernel of it was wanted.
        state: One word of SessionState.
        reason: Why its last kernel ended, or why it stops.
        restarts: How often it came back by itself.
        instance: Key of its last process life.
        failure: Problem document of a hard failure.
    """

    id: str
    name: str
    cwd: str
    interpreter: str
    backend: str
    language: str
    owner: str
    created_at: float
    state: str
    kernelspec: str | None = None
    last_used: float | None = None
    reason: str | None = None
    restarts: int = 0
    instance: str | None = None
    failure: Mapping[str, Any] | None = None


_COLUMNS = tuple(each.name for each in fields(KernelSessionRow))
_UPSERT = f"""INSERT INTO kernel_sessions ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
    ON CONFLICT (id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in {"id", "created_at"})}"""  # noqa: S608  # names of our own fields


def remember(ledger: Ledger, row: KernelSessionRow) -> None:
    """Record the present state of a session."""
    values = [getattr(row, name) for name in _COLUMNS]
    values[_COLUMNS.index("failure")] = None if row.failure is None else to_json(row.failure)
    ledger.post(lambda connection: connection.execute(_UPSERT, values))


def forget(ledger: Ledger, session: str) -> None:
    """Drop a session and the history of its cells."""

    def drop(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM kernel_cells WHERE session = ?", (session,))
        connection.execute("DELETE FROM kernel_sessions WHERE id = ?", (session,))

    ledger.post(drop)


async def get(ledger: Ledger, session: str) -> KernelSessionRow | None:
    """Return one session."""
    found = await _query(ledger, "WHERE id = ?", (session,))
    return found[0] if found else None


async def everything(ledger: Ledger) -> list[KernelSessionRow]:
    """Return all sessions, the last used first."""
    return await _query(ledger, "ORDER BY coalesce(last_used, created_at) DESC, id", ())


async def _query(ledger: Ledger, where: str, values: Sequence[object]) -> list[KernelSessionRow]:
    def run(connection: sqlite3.Connection) -> list[KernelSessionRow]:
        return [_row(it) for it in select(connection, f"SELECT * FROM kernel_sessions {where}", values)]  # noqa: S608  # ours

    return await ledger.read(run)


def _row(columns: dict[str, Any]) -> KernelSessionRow:
    failure = columns.pop("failure")
    return KernelSessionRow(**columns, failure=None if failure is None else from_json(failure))
