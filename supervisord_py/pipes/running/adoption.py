"""Taking over what an earlier control plane left: agents that still run, rows that nobody finished, the line.

Law: an agent that the keeper holds goes on, with its output from where it was read and its timeout from where it was
counted. A row that says `running` without such an agent was cut off: failed, `interrupted`; what survives of it is
killed by its identity only, its output folder is marked, never deleted. What waited waits on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import ConfigError, ConflictError, PxError
from supervisord_py.ledger import pipe_executions, pipe_history
from supervisord_py.pipes import rows
from supervisord_py.pipes.execution import ErrorType, Outcome, Status
from supervisord_py.pipes.launch import recall_secrets
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.room_requests import MOST_PAGE, OutputStream
from supervisord_py.pipes.running import run_terms
from supervisord_py.pipes.running.following import Following
from supervisord_py.pipes.running.live_run import LiveRun
from supervisord_py.pipes.running.log_blots import blot_the_rest
from supervisord_py.pipes.running.run_terms import RunTerms, decode_tag
from supervisord_py.pipes.running.spool import Spool, size
from supervisord_py.pipes.running.starting import order_of
from supervisord_py.pipes.running.stopping import remove_private_files
from supervisord_py.pipes.running.transcript import Transcript, Veiled
from supervisord_py.pipes.running.watching import output_of
from supervisord_py.pipes.scheduler import whole_ms
from supervisord_py.process import host
from supervisord_py.process.logs import LogReader
from supervisord_py.process.model import Identity, Liveness, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from supervisord_py.ledger.pipe_executions import Output
    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.running.admission import Admission
    from supervisord_py.pipes.running.conclusion import Conclusion
    from supervisord_py.pipes.running.run_terms import RunTag
    from supervisord_py.pipes.running.running_house import RunningHouse
    from supervisord_py.process.model import Child

PREFIX = "pipe:"
INTERRUPTED = "interrupted by system restart"
_log = structlog.get_logger(__name__)


class Adoption:
    """Done once, when the room opens.

    Args:
        house: Whose executions.
        admission: Holds their slots and the line.
        conclusion: Records what was cut off.
        see_through: Goes on with one that runs.
    """

    def __init__(
        self,
        house: RunningHouse,
        admission: Admission,
        conclusion: Conclusion,
        see_through: Callable[[LiveRun], Coroutine[None, None, None]],
    ) -> None:
        self._house = house
        self._admission = admission
        self._conclusion = conclusion
        self._see_through = see_through

    async def adopt_all(self) -> None:
        """Go through everything that is held and everything that is open; returns when all is decided."""
        held = {child.key: child for child in await self._house.placement.list(PREFIX)}
        tags = {key: decode_tag(child.tag) for key, child in held.items()}
        by_execution = {tag.execution: held[key] for key, tag in tags.items() if tag is not None}
        opened = {row.id: row for row in await pipe_executions.open_rows(self._house.ledger)}
        for row in opened.values():
            execution, terms = rows.execution_of(row), run_terms.decode(row.progress)
            child = by_execution.get(execution.id)
            tag = tags.get(child.key) if child is not None else None
            if child is not None and tag is not None:
                await self._take_over(execution, child, tag, terms or await self._terms(execution))
            else:
                await self._interrupted(execution, terms or RunTerms())
        for child in held.values():
            tag = tags[child.key]
            if tag is None or tag.execution not in opened:
                self._house.run_task(self._stop_left_over(child, tag))
        for row in await pipe_executions.queued_rows(self._house.ledger):
            execution = rows.execution_of(row)
            self._admission.push(LiveRun(execution, self._house.definition(execution.pipe_name)))

    # -- agents that run ---------------------------------------------------------------------------------------------

    async def _take_over(self, execution: Execution, child: Child, tag: RunTag, terms: RunTerms) -> None:
        house = self._house
        live = LiveRun(execution, house.definition(execution.pipe_name))
        live.child, live.deadline, live.record, live.terms = child, tag.deadline, child.exit, terms
        live.heard_at = house.clocks.boot()
        who = child.identity
        live.become(
            instance=child.key,
            pid=who.pid,
            start_time=who.start_time,
            boot_id=who.boot_id,
            started_at=whole_ms(child.started_at),
        )
        if execution.pid is None:  # the control plane before us ended between the spawn and this
            facts = pipe_executions.Spawned(who.pid, who.start_time, who.boot_id, child.started_at)
            await pipe_executions.spawned(house.ledger, execution.id, facts)
        if tag.cause != Cause.NOBODY:
            live.end(Cause(tag.cause), tag.detail)
        self._admission.adopt(live)
        house.chronicle.say("execution_adopted", live, pid=who.pid)
        house.run_execution(self._see_through(live), f"pipe:{live.pipe}#{live.id}")

    async def _terms(self, execution: Execution) -> RunTerms:
        """Return how an agent is judged whose own terms were lost: as one that is started now would be."""
        with suppress(ConfigError):
            spec = (await self._house.shelf.adapters()).get(execution.plan.agent)
            return RunTerms(spec.parser, spec.success, spec.errors, allow_empty=execution.plan.allow_empty)
        return RunTerms()

    async def _stop_left_over(self, child: Child, tag: RunTag | None) -> None:
        """Clear away a process whose execution is over, or that nobody knows."""
        if tag is not None:
            await self._follow_up(tag.execution)
        placement = self._house.placement
        grace = self._house.config.stop_seconds if child.exit is None else 0.0
        report = await placement.stop(child.key, grace_seconds=grace, reason=Reason.REPLACED.value)
        if report.survivors:
            _log.error("pipe_left_over_survived", unit=child.unit, pids=[each.pid for each in report.survivors])
            return
        await self._house.chronicle.ended(child.key, Reason.REPLACED, await placement.wait(child.key))
        with suppress(ConflictError):
            await placement.release(child.key)

    async def _follow_up(self, number: int) -> None:
        """Do what follows from an end that was recorded by a control plane that ended before it came to that."""
        row = await pipe_executions.get(self._house.ledger, number, blobs=True)
        if row is None:
            return
        execution = rows.execution_of(row)
        since = pipe_history.Filter(pipe=row.pipe_name, since=row.queued_at, limit=MOST_PAGE)
        later = await pipe_history.page(self._house.ledger, since)
        has_next = any(each.retry_of == number for each in later.rows)
        live = LiveRun(execution, self._house.definition(execution.pipe_name))
        outcome = Outcome(execution.status, execution.error_type, execution.error_message)
        await asyncio.to_thread(remove_private_files, self._house.folder(number))
        await self._conclusion.after_another(live, outcome, has_next=has_next)

    # -- rows that were cut off --------------------------------------------------------------------------------------

    async def _interrupted(self, execution: Execution, terms: RunTerms) -> None:
        """Close a row whose process nobody holds any more."""
        killed = await asyncio.to_thread(_kill_survivors, execution)
        live = LiveRun(execution, self._house.definition(execution.pipe_name))
        words = INTERRUPTED if not killed else f"{INTERRUPTED}; its process {execution.pid} was still there, killed"
        live.end(Cause.INTERRUPTED, words)
        outcome = Outcome(Status.FAILED, ErrorType.INTERRUPTED, words)
        try:
            veiled = await self._veil_of(live, terms)
            output = await asyncio.to_thread(self._salvaged, live, terms.parser, veiled)
            await self._conclusion.record(live, outcome, output)
            await asyncio.to_thread(remove_private_files, self._house.folder(live.id))
            await self._conclusion.after(live, outcome)
        except PxError as error:
            _log.error("pipe_interruption_not_recorded", execution=execution.id, detail=error.detail)

    async def _veil_of(self, live: LiveRun, terms: RunTerms) -> Veiled:
        """Return what must not be stored of its output."""
        house = self._house
        order = order_of(house, live.execution, live.definition)
        return Veiled(await recall_secrets(order, await house.shelf.context()), terms.patterns)

    def _salvaged(self, live: LiveRun, parser: str, veiled: Veiled) -> Output:
        """Read what the log still has of it, and blot it there. Blocking."""
        house = self._house
        spool = Spool(house.folder(live.id), house.config.output.file_bytes)
        notes = spool.load_progress()
        reader = LogReader.of(house.placement.log_dir, live.execution.unit)
        if notes is None:  # how far another had come is not known: the log is what rotation leaves of it
            blot_the_rest(reader, 0, veiled.secrets, veiled.patterns)
            return _as_it_lies(live.execution, spool, house.config.output.row_bytes)
        transcript = Transcript(spool, reader, 0, parser, veiled)
        following = Following(live, transcript, house.clocks)
        transcript.resume(notes)
        if following.finish_once() is not None:
            transcript.give_up()
        spool.close()
        blot_the_rest(reader, notes.get("cursor", (0,))[0], veiled.secrets, veiled.patterns)
        return output_of(following, house.config.output.row_bytes)


def _as_it_lies(execution: Execution, spool: Spool, row_bytes: int) -> Output:
    """Return what the files hold of an execution whose reader came to no note: the row says as much, and no less."""
    for stream, said in ((OutputStream.STDOUT, execution.stdout_bytes), (OutputStream.STDERR, execution.stderr_bytes)):
        spool.sizes[stream] = size(spool.folder, stream) or 0
        spool.totals[stream] = max(said, spool.sizes[stream])
    lost = max(execution.lost_bytes, spool.over_cap)
    return spool.output(row_bytes, lost_bytes=lost, invalid_utf8=execution.invalid_utf8, usage=execution.usage)


def _kill_survivors(execution: Execution) -> bool:
    """Kill the process group of an agent that outlived its keeper, if exactly that process lives. Blocking."""
    if execution.pid is None or execution.start_time is None or not execution.boot_id:
        return False
    who = Identity(execution.pid, execution.start_time, execution.boot_id)
    if host.liveness(who) is not Liveness.ALIVE:
        return False
    try:
        # The keeper made it the leader of its own session: the group has its pid, and lives as long as it does.
        os.killpg(execution.pid, signal.SIGKILL)
    except OSError as error:
        _log.warning("pipe_survivor_not_killed", pid=execution.pid, detail=str(error))
        return False
    return True
