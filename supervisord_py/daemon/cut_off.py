"""What was cut off before this start: by the death of an earlier keeper, or by an end in haste.

Law: the start after a loss says what was lost, whoever noticed it first: the earlier control plane, which saw its
keeper die; this one, which finds rows that nobody holds; or our keeper, which swept what it found. What an earlier
start has said already is not said again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.api.context import CutOff
from supervisord_py.ledger import event_rows, instances, runs
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from supervisord_py.kernels.room import Kernels
    from supervisord_py.ledger.instances import InstanceRow
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.spec import Caps
    from supervisord_py.tools.serving.launcher import Launcher

_log = structlog.get_logger(__name__)
_STARTED = "control_started"
_SPARES = "kernel-spare:"


@dataclass(frozen=True, slots=True)
class Losses:
    """What ended without anybody's record.

    Attributes:
        interrupted: What was cut off before this start, for the API.
        rows: The lives that ended so, those included that were being stopped: whose tools now show it.
    """

    interrupted: tuple[CutOff, ...]
    rows: tuple[InstanceRow, ...]


async def close(ledger: Ledger, events: EventStream, caps: Caps, held: Collection[str]) -> Losses:
    """Close the rows that nobody holds any more; tell log and events of them, and return all that was cut off.

    Args:
        ledger: Where the rows are.
        events: Where it is published, once a row.
        caps: What our keeper said of itself and of what it swept.
        held: Keys that our keeper holds.
    """
    before = await event_rows.last_time(ledger, _STARTED, before=caps.keeper_started_at)
    now = time.time()
    await _tell_late(ledger, events, now)
    lost = [row for row in await instances.open_rows(ledger) if row.key not in held]
    wanted = {row.key: await _stop_reason(ledger, row) for row in lost}
    closed = await instances.close_interrupted(ledger, held, now, {key: why.value for key, why in wanted.items()})
    await runs.close_interrupted(ledger, now)
    rows = {row.key: row for row in await instances.interrupted_since(ledger, before)}
    rows.update((row.key, row) for row in closed)
    pids = {key: pid for key, _, pid in caps.interrupted}
    found = {
        row.key: CutOff(row.key, row.unit, pids.get(row.key, row.pid))
        for row in rows.values()
        if row.reason == Reason.INTERRUPTED
    }
    found.update((key, CutOff(key, unit, pid)) for key, unit, pid in _nobodys_rows(caps) if key not in rows)
    _tell(events, closed, found.values() if caps.control_restarts == 0 else [])
    return Losses(tuple(found.values()), tuple(rows.values()))


def _nobodys_rows(caps: Caps) -> list[tuple[str, str, int]]:
    """Return what was swept, but for kernels that were started ahead: a loss only if given away, and then in a row."""
    return [swept for swept in caps.interrupted if not swept[1].startswith(_SPARES)]


async def _tell_late(ledger: Ledger, events: EventStream, now: float) -> None:
    """Publish the ends that the control plane before this one wrote down, but was killed before it told them."""
    since = await event_rows.last_time(ledger, _STARTED, before=now)
    for row in await instances.untold_ends(ledger, since):
        wanted = await event_rows.latest_of_instance(ledger, row.unit, row.key, "stopping")
        reason = Reason(row.reason) if row.reason in set(Reason) else Reason.INTERRUPTED
        event = "died" if wanted is None else "stopped"
        facts = {"pid": row.pid, "code": row.code, "signal": row.signal, "ended_at": row.ended_at}
        events.publish(event, row.unit, reason, instance=row.key, cause=None if wanted is None else wanted.id, **facts)


async def _stop_reason(ledger: Ledger, row: InstanceRow) -> Reason:
    """Return why an instance was being stopped when it was cut off, or that nobody wanted it to end."""
    told = await event_rows.latest_of_instance(ledger, row.unit, row.key, "stopping")
    return Reason(told.reason) if told is not None and told.reason in set(Reason) else Reason.INTERRUPTED


def _tell(events: EventStream, closed: Sequence[InstanceRow], found: Collection[CutOff]) -> None:
    for row in closed:
        reason = Reason(row.reason or Reason.INTERRUPTED)
        event = "interrupted" if reason is Reason.INTERRUPTED else "stopped"
        events.publish(event, row.unit, reason, instance=row.key, pid=row.pid)
    told = {each.instance: each for each in found}
    told.update((row.key, CutOff(row.key, row.unit, row.pid)) for row in closed if row.key not in told)
    if told:
        _log.warning(
            "interrupted",
            units=sorted({each.unit for each in told.values()}),
            children=[f"{each.instance} pid {each.pid}" for each in told.values()],
        )


async def remember(ledger: Ledger, launcher: Launcher, losses: Losses) -> None:
    """Have the tools show how their last life ended, until the next start of each."""
    for row in losses.rows:
        kind, _, name = row.unit.partition(":")
        if kind != "tool":
            continue
        is_last = await _is_last(ledger, row) and launcher.instance_of(name) is None
        if is_last and launcher.chronicle.standing(name).state != "failed":  # that says more
            launcher.chronicle.update(name, state="cold", reason=row.reason, failure=None)


async def remember_kernels(ledger: Ledger, kernels: Kernels, losses: Losses) -> None:
    """Have the sessions show how their last kernel ended, until the next start of each."""
    for row in losses.rows:
        kind, _, name = row.unit.partition(":")
        session = kernels.register.get(name) if kind == "kernel" else None
        if session is not None and session.life is None and row.reason in set(Reason) and await _is_last(ledger, row):
            session.reason = Reason(row.reason)
            kernels.register.write(session)


async def _is_last(ledger: Ledger, row: InstanceRow) -> bool:
    """Say whether no later life of the unit is known."""
    newest = await instances.latest(ledger, row.unit)
    return bool(newest) and newest[0].key == row.key
