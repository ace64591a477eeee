"""Lives of processes, and what units were last.

A process exists only with a record: its row is there before the child runs. The first end that is
recorded stands.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Operation, Table, together

INTERRUPTED = "interrupted"


class InstanceRow(msgspec.Struct, frozen=True):
    """One instance.

    Times are Unix seconds; what is not known (yet) is None. `verdict`: what its killer wrote down.
    """

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
    verdict: dict[str, Any] | None = None
    max_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    start_method: str | None = None
    port: int | None = None
    log_position: int | None = None
    log_end: int | None = None
    spec_digest: str | None = None
    memory_peak_bytes: int | None = None


class UnitStateRow(msgspec.Struct, frozen=True):
    """What a unit last was: shown after a restart until something new is observed.

    Decides nothing.
    """

    unit: str
    state: str
    updated_at: float
    last_used: float | None = None
    restarts: int = 0
    facts: dict[str, Any] = {}


class PinRow(msgspec.Struct, frozen=True):
    """A unit exempt from LRU eviction, and with `forever` from eviction for age too."""

    unit: str
    forever: bool
    pinned_at: float


INSTANCES = Table("instances", InstanceRow, key="key")
UNIT_STATES = Table("unit_state", UnitStateRow, key="unit")
PINS = Table("pins", PinRow, key="unit")


def forget_unit(unit: str) -> Operation:
    """Drop what is remembered of a unit that was removed: its state, its pin, and the instances
    that have ended.

    Its events stay. One that is still open keeps its row, because its end is yet to be recorded
    there.
    """
    lives = "DELETE FROM instances WHERE unit = ? AND ended_at IS NOT NULL"
    return together(
        UNIT_STATES.delete(unit),
        PINS.delete(unit),
        lambda connection: connection.execute(lives, (unit,)),
    )


def became_ready(key: str, at: float) -> Operation:
    return INSTANCES.update(key, "ready_at IS NULL", ready_at=at)


def ended(key: str, ended_at: float, reason: str, **facts: Any) -> Operation:
    """Record how an instance ended; only the first end counts."""
    return INSTANCES.update(key, "ended_at IS NULL", ended_at=ended_at, reason=reason, **facts)


async def close_interrupted(
    ledger: Ledger, alive_keys: Collection[str], now: float
) -> list[InstanceRow]:
    """Close what is open and not among `alive_keys`, whose exit records are still to come;
    return the rows closed.
    """
    left = [row for row in await open_rows(ledger) if row.key not in alive_keys]
    for row in left:
        await ledger.write(ended(row.key, now, INTERRUPTED))
    return [msgspec.structs.replace(row, ended_at=now, reason=INTERRUPTED) for row in left]


async def interrupted_since(ledger: Ledger, moment: float) -> list[InstanceRow]:
    """Return the instances that were recorded as interrupted at or after a moment, oldest first."""
    # The word stands in the text, as in the condition of the index: a bound value would scan the
    # whole table.
    where = f"WHERE reason = '{INTERRUPTED}' AND ended_at >= ? ORDER BY started_at, key"
    return await INSTANCES.find(ledger, where, moment)


async def latest(ledger: Ledger, unit: str, limit: int = 1) -> list[InstanceRow]:
    """Return the newest instances of a unit, newest first."""
    return await INSTANCES.find(
        ledger, "WHERE unit = ? ORDER BY started_at DESC, key DESC LIMIT ?", unit, limit
    )


async def open_rows(ledger: Ledger) -> list[InstanceRow]:
    """Return the instances whose end is not recorded, oldest first."""
    return await INSTANCES.find(ledger, "WHERE ended_at IS NULL ORDER BY started_at, key")
