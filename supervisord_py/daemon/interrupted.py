"""What was interrupted before this start: by the death of an earlier keeper, or by an end in haste.

Rows that nobody holds any more are closed here and nowhere else; they and what the keeper swept are what was lost. All
control planes of one keeper say it; it is published once a row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import structlog

from supervisord_py.api.context import CutOff
from supervisord_py.ledger import instances
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from supervisord_py.kernels.room import Kernels
    from supervisord_py.ledger.instances import InstanceRow
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.model import Caps
    from supervisord_py.tools.service import Tools

_log = structlog.get_logger(__name__)


class Losses(NamedTuple):
    """What ended without anybody's record: for the API, and the rows of the lives whose units now show it."""

    interrupted: tuple[CutOff, ...]
    rows: tuple[InstanceRow, ...]


async def close(ledger: Ledger, events: EventStream, caps: Caps, held: Collection[str]) -> Losses:
    """Close the rows of which our keeper holds no child; tell log and events, and return all that was cut off."""
    closed = await instances.close_interrupted(ledger, held, time.time())
    rows = {row.key: row for row in await instances.interrupted_since(ledger, caps.keeper_started_at)}
    rows.update((row.key, row) for row in closed)
    pids = {key: pid for key, _, pid in caps.interrupted}
    found = {row.key: CutOff(row.key, row.unit, pids.get(row.key, row.pid)) for row in rows.values()}
    for key, unit, pid in caps.interrupted:
        if key not in rows and not unit.startswith("zygote:"):
            found[key] = CutOff(key, unit, pid)
    for row in closed:
        events.publish("interrupted", row.unit, Reason.INTERRUPTED, instance=row.key, pid=row.pid)
    if told := [found[row.key] for row in closed] if caps.control_restarts else list(found.values()):
        children = [f"{each.instance} pid {each.pid}" for each in told]
        _log.warning("interrupted", units=sorted({each.unit for each in told}), children=children)
    return Losses(tuple(found.values()), tuple(rows.values()))


async def remember(ledger: Ledger, launcher: Tools, kernels: Kernels, losses: Losses) -> None:
    """Have tools and sessions show how their last life ended, until the next start of each."""
    for row in losses.rows:
        kind, _, name = row.unit.partition(":")
        newest = await instances.latest(ledger, row.unit)
        if not newest or newest[0].key != row.key:
            continue
        is_cold = kind == "tool" and launcher.instance_of(name) is None
        if is_cold and launcher.states.of(name).state != "failed":  # that says more
            launcher.states.remember(name, state="cold", reason=row.reason, failure=None)
        session = kernels.register.sessions.get(name) if kind == "kernel" else None
        if session is not None and session.kernel is None and row.reason in set(Reason):
            session.reason = Reason(row.reason)
            kernels.register.write(session)
