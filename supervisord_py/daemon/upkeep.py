"""What goes on in the background of a control plane: old rows are forgotten, troubles of log and ledger are told."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import retention

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.daemon.steering import Steering
    from supervisord_py.ledger.retention import RetentionLimits
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.local import LocalPlacement
    from supervisord_py.process.messages import LogTrouble

FIRST_PRUNE_SECONDS = 60.0
PRUNE_SECONDS = 3600.0

_log = structlog.get_logger(__name__)


async def prune_for_ever(ledger: Ledger, limits: Callable[[], RetentionLimits]) -> NoReturn:
    """Forget old rows, now and then. A ledger in trouble is left alone until the next time."""
    await asyncio.sleep(FIRST_PRUNE_SECONDS)
    while True:
        try:
            pruned = await retention.prune(ledger, limits(), time.time())
            _log.debug("pruned", events=pruned.events, runs=pruned.runs, instances=pruned.instances)
        except PxError as error:
            _log.warning("prune_failed", detail=error.detail)
        await asyncio.sleep(PRUNE_SECONDS)


def tell_troubles(placement: LocalPlacement, ledger: Ledger, events: EventStream, steering: Steering) -> None:
    """Turn what log and ledger report into events and into degradations that `status` and `doctor` show."""

    def log_trouble(trouble: LogTrouble) -> None:
        part = f"log of {trouble.unit}"
        if trouble.recovered:
            steering.recover(part)
            events.publish("log_recovered", trouble.unit, lost_bytes=trouble.lost_bytes)
            return
        steering.degrade(part, f"the disk refuses output (errno {trouble.errno})", "df -h, then free some space")
        events.publish("log_degraded", trouble.unit, errno=trouble.errno, lost_bytes=trouble.lost_bytes)

    def ledger_degraded(why: str) -> None:
        steering.degrade("ledger", f"writes wait in memory: {why}", "df -h, then free some space")
        events.publish("ledger_degraded", detail=why)

    def ledger_recovered(lost_writes: int) -> None:
        steering.recover("ledger")
        events.publish("ledger_recovered", lost_writes=lost_writes)

    placement.on_log_degraded(log_trouble)
    ledger.on_degraded(ledger_degraded)
    ledger.on_recovered(ledger_recovered)
    if ledger.degraded:
        ledger_degraded(ledger.degraded)
    if (recovery := ledger.recovered_from) is not None:
        _log.error("ledger_recovered_from_damage", moved_to=recovery.moved_to, detail=recovery.detail)
        events.publish("ledger_rebuilt", moved_to=str(recovery.moved_to), detail=recovery.detail)
