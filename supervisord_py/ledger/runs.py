"""Runs of tools: one row each, begun when it is accepted, finished once with an outcome.

Law: a run never waits for the ledger; its id is given at once and its row follows in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.ledger.rows import select

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from supervisord_py.ledger.store import Durability, Ledger

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run.

    Attributes:
        id: Grows.
        unit: `tool:x`.
        started_at: Unix seconds, when it was accepted.
        instance: Instance id that did it, None while it waits.
        ended_at: Unix seconds, None while it runs.
        outcome: One word, `completed` or a reason of CONTRACT §7.
        status: HTTP status of the answer.
        error_kind: Kind of the error, None when it went well.
        cold_start_ms: How long it waited for a start, None when the tool was warm.
        duration_seconds: From acceptance to the end of the answer.
        request_id: Of the HTTP request.
    """

    id: int
    unit: str
    started_at: float
    instance: str | None = None
    ended_at: float | None = None
    outcome: str | None = None
    status: int | None = None
    error_kind: str | None = None
    cold_start_ms: float | None = None
    duration_seconds: float | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known when a run is accepted."""

    unit: str
    started_at: float
    request_id: str | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What is known at its end; `instance` stays as it was where it is None."""

    ended_at: float
    outcome: str
    duration_seconds: float
    status: int | None = None
    error_kind: str | None = None
    cold_start_ms: float | None = None
    instance: str | None = None


def begin(ledger: Ledger, run: Begun) -> int:
    """Record a run that begins, and return its id at once."""
    number = ledger.next_number("runs")
    sql = "INSERT INTO runs (id, unit, started_at, request_id, instance) VALUES (?, ?, ?, ?, ?)"
    values = (number, run.unit, run.started_at, run.request_id, run.instance)
    ledger.post(lambda connection: connection.execute(sql, values))
    return number


def finish(ledger: Ledger, number: int, end: Finished) -> None:
    """Record how a run ended; only the first end counts."""
    sql = """UPDATE runs SET ended_at = ?, outcome = ?, duration_seconds = ?, status = ?, error_kind = ?,
             cold_start_ms = ?, instance = coalesce(?, instance) WHERE id = ? AND ended_at IS NULL"""
    values = (
        end.ended_at,
        end.outcome,
        end.duration_seconds,
        end.status,
        end.error_kind,
        end.cold_start_ms,
        end.instance,
        number,
    )
    ledger.post(lambda connection: connection.execute(sql, values))


async def close_interrupted(ledger: Ledger, now: float) -> Durability:
    """Close the runs that an earlier control plane left open; call it before the first run of this one."""
    sql = """UPDATE runs SET ended_at = ?, outcome = ?, error_kind = ?, duration_seconds = max(0, ? - started_at)
             WHERE ended_at IS NULL"""
    values = (now, INTERRUPTED, INTERRUPTED, now)
    return await ledger.write(lambda connection: connection.execute(sql, values))


async def get(ledger: Ledger, number: int) -> RunRow | None:
    """Return one run."""
    found = await _query(ledger, "WHERE id = ?", (number,))
    return found[0] if found else None


async def latest(ledger: Ledger, unit: str | None = None, limit: int = 20) -> list[RunRow]:
    """Return the newest runs, of one unit or of all, newest first."""
    if unit is None:
        return await _query(ledger, "ORDER BY id DESC LIMIT ?", (limit,))
    return await _query(ledger, "WHERE unit = ? ORDER BY id DESC LIMIT ?", (unit, limit))


async def _query(ledger: Ledger, where: str, values: Sequence[object]) -> list[RunRow]:
    def run(connection: sqlite3.Connection) -> list[RunRow]:
        return [RunRow(**it) for it in select(connection, f"SELECT * FROM runs {where}", values)]  # noqa: S608  # ours

    return await ledger.read(run)
