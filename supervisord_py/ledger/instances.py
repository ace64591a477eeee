"""Child process lives: one row each, written before the spawn, closed once with a reason.

Law (DESIGN §4.1): a process exists only with a record, so the row is there before the child runs; the first end that is
recorded stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.rows import from_json, select, to_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Mapping, Sequence

    from supervisord_py.ledger.store import Durability, Ledger

    Operation = Callable[[sqlite3.Connection], object]

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One instance. Times are Unix seconds; what is not known (yet) is None."""

    key: str
    unit: str
    started_at: float
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    code: int | None = None
    signal: int | None = None
    verdict: Mapping[str, Any] | None = None
    max_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    start_method: str | None = None
    port: int | None = None
    log_position: int | None = None
    log_end: int | None = None
    spec_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Starting:
    """What is known before the spawn."""

    key: str
    unit: str
    started_at: float
    start_method: str | None = None
    port: int | None = None
    spec_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Spawned:
    """What the spawn told."""

    pid: int
    start_time: int
    boot_id: str
    started_at: float
    log_position: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended. `verdict` is what the killer wrote down, JSON values."""

    ended_at: float
    reason: str
    code: int | None = None
    signal: int | None = None
    verdict: Mapping[str, Any] | None = None
    max_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    log_end: int | None = None


async def insert_starting(ledger: Ledger, row: Starting) -> Durability:
    """Record an instance that is about to be spawned; a key that is there already stays as it is."""
    return await ledger.write(starting_of(row))


def starting_of(row: Starting) -> Operation:
    """Return what `insert_starting` writes, for a transaction that writes more."""
    sql = """INSERT INTO instances (key, unit, started_at, start_method, port, spec_digest) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (key) DO NOTHING"""
    values = (row.key, row.unit, row.started_at, row.start_method, row.port, row.spec_digest)
    return lambda connection: connection.execute(sql, values)


async def spawned(ledger: Ledger, key: str, facts: Spawned) -> Durability:
    """Record which process it became."""
    return await ledger.write(spawned_of(key, facts))


def spawned_of(key: str, facts: Spawned) -> Operation:
    """Return what `spawned` writes, for a transaction that writes more."""
    sql = """UPDATE instances SET pid = ?, start_time = ?, boot_id = ?, started_at = ?, log_position = ?
             WHERE key = ?"""
    values = (facts.pid, facts.start_time, facts.boot_id, facts.started_at, facts.log_position, key)
    return lambda connection: connection.execute(sql, values)


async def ready(ledger: Ledger, key: str, at: float) -> Durability:
    """Record when it first could take work."""
    sql = "UPDATE instances SET ready_at = coalesce(ready_at, ?) WHERE key = ?"
    return await ledger.write(lambda connection: connection.execute(sql, (at, key)))


def post_ready(ledger: Ledger, key: str, at: float) -> None:
    """Record when it first could take work; nobody waits for that."""
    sql = "UPDATE instances SET ready_at = coalesce(ready_at, ?) WHERE key = ?"
    ledger.post(lambda connection: connection.execute(sql, (at, key)))


async def ended(ledger: Ledger, key: str, ending: Ending) -> Durability:
    """Record how it ended; only the first end counts."""
    return await ledger.write(ended_of(key, ending))


def ended_of(key: str, ending: Ending) -> Operation:
    """Return what `ended` writes, for a transaction that writes more."""
    sql = """UPDATE instances SET ended_at = ?, reason = ?, code = ?, signal = ?, verdict = ?, max_rss_bytes = ?,
             cpu_seconds = ?, log_end = ? WHERE key = ? AND ended_at IS NULL"""
    verdict = None if ending.verdict is None else to_json(ending.verdict)
    values = (
        ending.ended_at,
        ending.reason,
        ending.code,
        ending.signal,
        verdict,
        ending.max_rss_bytes,
        ending.cpu_seconds,
        ending.log_end,
        key,
    )
    return lambda connection: connection.execute(sql, values)


async def close_interrupted(ledger: Ledger, alive_keys: Collection[str], now: float) -> list[InstanceRow]:
    """Close what an earlier control plane left open and nobody holds any more; each such row once.

    Args:
        ledger: Where.
        alive_keys: Keys that the keeper holds, exited ones included: their exit records are still to come.
        now: Unix seconds.

    Returns:
        The rows that are closed now, with their reason.
    """
    left = [row for row in await open_rows(ledger) if row.key not in alive_keys]
    for row in left:
        await ended(ledger, row.key, Ending(now, INTERRUPTED))
    return [replace(row, ended_at=now, reason=INTERRUPTED) for row in left]


async def interrupted_since(ledger: Ledger, moment: float) -> list[InstanceRow]:
    """Return the instances that were recorded as interrupted at or after a moment, oldest first."""
    return await _query(ledger, "WHERE reason = ? AND ended_at >= ? ORDER BY started_at, key", (INTERRUPTED, moment))


async def get(ledger: Ledger, key: str) -> InstanceRow | None:
    """Return one instance."""
    found = await _query(ledger, "WHERE key = ?", (key,))
    return found[0] if found else None


async def latest(ledger: Ledger, unit: str, limit: int = 1) -> list[InstanceRow]:
    """Return the newest instances of a unit, newest first."""
    return await _query(ledger, "WHERE unit = ? ORDER BY started_at DESC, key DESC LIMIT ?", (unit, limit))


async def open_rows(ledger: Ledger) -> list[InstanceRow]:
    """Return the instances whose end is not recorded, oldest first."""
    return await _query(ledger, "WHERE ended_at IS NULL ORDER BY started_at, key", ())


async def _query(ledger: Ledger, where: str, values: Sequence[object]) -> list[InstanceRow]:
    def run(connection: sqlite3.Connection) -> list[InstanceRow]:
        return [_row(it) for it in select(connection, f"SELECT * FROM instances {where}", values)]  # noqa: S608  # ours

    return await ledger.read(run)


def _row(columns: dict[str, Any]) -> InstanceRow:
    verdict = columns.pop("verdict")
    return InstanceRow(**columns, verdict=None if verdict is None else from_json(verdict))
