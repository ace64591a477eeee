"""What a unit last was: shown after a restart until something new is observed. Never decides anything.

Law: the last word counts, and writing it never makes anybody wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.rows import from_json, select, to_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from supervisord_py.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class UnitStateRow:
    """The last state of a unit.

    Attributes:
        unit: `kind:name`.
        state: One word.
        updated_at: Unix seconds.
        last_used: Unix seconds of the end of its last request, or None.
        restarts: How often it was started again.
        facts: Further JSON values.
    """

    unit: str
    state: str
    updated_at: float
    last_used: float | None = None
    restarts: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


def remember(ledger: Ledger, row: UnitStateRow) -> None:
    """Record the last state of a unit."""
    sql = """INSERT INTO unit_state (unit, state, facts, last_used, restarts, updated_at) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (unit) DO UPDATE SET state = excluded.state, facts = excluded.facts,
             last_used = excluded.last_used, restarts = excluded.restarts, updated_at = excluded.updated_at"""
    values = (row.unit, row.state, to_json(row.facts), row.last_used, row.restarts, row.updated_at)
    ledger.post(lambda connection: connection.execute(sql, values))


async def everything(ledger: Ledger) -> list[UnitStateRow]:
    """Return the last state of all units, by name."""

    def run(connection: sqlite3.Connection) -> list[UnitStateRow]:
        rows = select(connection, "SELECT * FROM unit_state ORDER BY unit")
        return [UnitStateRow(**{**row, "facts": from_json(row["facts"])}) for row in rows]

    return await ledger.read(run)
