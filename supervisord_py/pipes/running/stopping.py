"""The end of one agent: its whole tree, what is known of how it ended, and what it held.

Law: also after a normal exit the tree is stopped: what tools left in sessions of their own goes, too (pi does that
with every shell command). What survives is named in the row, and stopped again and again; it never keeps the slot.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import ConflictError, KeeperLostError, PxError
from supervisord_py.pipes.launch import cleanup
from supervisord_py.pipes.outcome import Cause, ExitInfo
from supervisord_py.pipes.room_requests import OutputStream
from supervisord_py.pipes.running.run_terms import RunTag, RunTerms
from supervisord_py.pipes.running.spool import Spool
from supervisord_py.process.instance import ended_row
from supervisord_py.process.lifecycle import describe, outcome
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.ledger.table import Operation
    from supervisord_py.pipes.execution import Outcome
    from supervisord_py.pipes.running.following import Following
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse

TAIL_BYTES = 64 * 1024
"""So much of each stream is looked at for the reason of a failure."""
TRY_AGAIN_SECONDS = 5.0
_LIMITS = frozenset((Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.CPU_LIMIT))
REASONS = {
    Cause.NOBODY: Reason.EXIT,
    Cause.SETTLED: Reason.EXIT,
    Cause.TIMEOUT: Reason.TIMEOUT,
    Cause.SILENT: Reason.TIMEOUT,
    Cause.CANCELLED: Reason.CANCELLED,
    Cause.SHUTDOWN: Reason.SHUTDOWN,
    Cause.INTERRUPTED: Reason.INTERRUPTED,
    Cause.BUDGET: Reason.RUNTIME_LIMIT,
}
_log = structlog.get_logger(__name__)


class Stopping:
    """Ends agents."""

    def __init__(self, house: RunningHouse) -> None:
        self._house = house

    async def stop(self, live: LiveRun, terms: RunTerms | None = None) -> None:
        """Stop the tree, and learn how its leader ended."""
        house, terms = self._house, terms or live.terms or RunTerms()
        reason = REASONS[live.cause]
        if not live.is_wanted:
            await house.placement.annotate(live.key, self._tag(live))
        await self._ask_politely(live, terms)
        report = await house.placement.stop(live.key, grace_seconds=terms.stop_seconds, reason=reason.value)
        live.survivors = tuple(each.pid for each in report.survivors)
        leader = live.child.identity.pid if live.child else None
        if live.record is None and leader not in live.survivors:
            child = await house.placement.attach(live.key)
            live.record = await house.placement.wait(live.key) if child is not None else None

    def _tag(self, live: LiveRun) -> str:
        return RunTag(live.id, live.deadline, live.cause.value, live.detail).encode()

    async def _ask_politely(self, live: LiveRun, terms: RunTerms) -> None:
        """Send the adapter's own signal first, where it has one that is not TERM; its grace counts twice then."""
        if live.record is not None or terms.stop_signal in {None, signal.SIGTERM, signal.SIGKILL}:
            return
        with suppress(ConflictError):
            await self._house.placement.signal(live.key, terms.stop_signal or signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(terms.stop_seconds):
                    live.record = await self._house.placement.wait(live.key)

    # -- what it held ------------------------------------------------------------------------------------------------

    async def clear(self, live: LiveRun) -> None:
        """Record the end of the process, and remove what it held."""
        await self._house.ledger.write(life_of_run_ends(live))
        await self.clear_away(live)

    async def clear_away(self, live: LiveRun) -> None:
        """Remove the private files of a process whose end is recorded."""
        await asyncio.to_thread(remove_private_files, self._house.folder(live.id))

    async def clear_unstarted(self, live: LiveRun) -> None:
        """Remove what was made for one that never came to run."""
        if live.key:
            await self._house.chronicle.ended(live.key, Reason.SPAWN_FAILED, None)
        await self.clear_away(live)

    async def release(self, live: LiveRun) -> None:
        """Have the keeper forget it; survivors are stopped in the background first."""
        if not live.survivors:
            await self._release(live.key)
            return
        _log.error("pipe_survived_stop", unit=live.execution.unit, execution=live.id, pids=live.survivors)
        self._house.run_task(self._keep_stopping(live))

    async def _release(self, key: str) -> None:
        try:
            await self._house.placement.release(key)
        except ConflictError as error:
            _log.warning("release_refused", instance=key, detail=error.detail)

    async def _keep_stopping(self, live: LiveRun) -> None:
        while True:
            await asyncio.sleep(TRY_AGAIN_SECONDS)
            try:
                report = await self._house.placement.stop(live.key, grace_seconds=0.0, reason=Reason.STOPPED.value)
            except KeeperLostError:
                return
            except PxError as error:
                _log.warning("pipe_survivors_not_stopped", instance=live.key, detail=error.detail)
                continue
            if not report.survivors:
                await self._release(live.key)
                return


def life_of_run_ends(live: LiveRun) -> Operation:
    """Return what writes down how a run's process ended."""
    wanted = None if live.is_wanted else REASONS[live.cause]
    unseen = wanted or Reason.INTERRUPTED
    reason = unseen if live.record is None else outcome(live.record, wanted, ready=True)
    return ended_row(live.key, reason, live.record)


# -- what is known of an end -------------------------------------------------------------------------------------------


def ending_of(live: LiveRun, following: Following) -> ExitInfo:
    """Return all that is known of an end. Blocking: reads the tails of the output."""
    record, verdict = live.record, live.record.verdict if live.record else None
    limit = verdict.reason if verdict is not None and verdict.reason in _LIMITS else None
    detail = live.detail
    if record is not None and limit is not None:
        detail = describe(record, limit)
    return ExitInfo(
        cause=live.cause if limit is None else Cause.NOBODY,
        code=record.code if record else None,
        signal=record.signal if record else None,
        limit=None if limit is None else limit.value,
        stdout_tail=following.spool.tail(OutputStream.STDOUT, TAIL_BYTES),
        stderr_tail=following.spool.tail(OutputStream.STDERR, TAIL_BYTES),
        detail=detail,
    )


def told_with_survivors(live: LiveRun, outcome: Outcome) -> Outcome:
    """Name what outlived the stop, whatever the outcome."""
    if not live.survivors:
        return outcome
    names = ", ".join(str(pid) for pid in live.survivors)
    words = f"survived the stop: pid {names}"
    return replace(outcome, error_message=f"{outcome.error_message}; {words}" if outcome.error_message else words)


def remove_private_files(folder: Path) -> None:
    """Remove what an execution must not leave: its agent's files, its notes. Blocking; fine to do twice."""
    with suppress(OSError):
        cleanup(folder)
    Spool(folder, 0).drop_progress()
