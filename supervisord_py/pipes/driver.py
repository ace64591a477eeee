"""The driver of executions: what the supervisor spawns for one, how it is adopted, and what it must not leave.

Processes that outlived their keeper are the keeper's: it sweeps them before anything is adopted.
"""

from __future__ import annotations

import asyncio
import errno
from datetime import datetime
from zoneinfo import ZoneInfo

import structlog
from msgspec import structs

from supervisord_py.errors import PxError
from supervisord_py.ledger.instances import ended
from supervisord_py.ledger.pipes import EXECUTIONS, OPEN, ErrorType, Execution, Status, open_rows, usage_since
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.executions import Executions
from supervisord_py.pipes.launch import check, write_files
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.preflight import check_provider
from supervisord_py.pipes.run import Run
from supervisord_py.process.instance import Note, Phase, read_note
from supervisord_py.process.model import Child, ChildSpec, Reason, tree_limits

_AGAIN = {"status": Status.QUEUED, "started_at": None, "queue_wait_ms": None, "instance": None, "progress": None}
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
_log = structlog.get_logger(__name__)


class RunDriver:
    kind = "pipe"

    def __init__(self, room: Executions) -> None:
        self._room = room
        self._known: dict[int, Execution] = {}  # rows of executions whose processes are held, while they are adopted
        self._retried: set[int | None] = set()  # executions of which the next try is in line, at that time

    async def prepare(self, run: Run) -> ChildSpec:
        """Check its budget, and make everything ready for the spawn: its files are written, its descriptors open.

        Raises CannotRunError: with the error type of the row.
        """
        room, it, redact = self._room, run.execution, run.definition.redact if run.definition else ()
        await self._check_budget(run)
        run.launch = found = await check(room.shelf, it, run.home, redact)
        run.terms, run.stop_seconds = found.terms, found.terms.stop_seconds
        try:
            await asyncio.to_thread(write_files, found, run.folder, it.rendered_prompt or "", run.fds)
        except OSError as error:
            message = f"{error.filename or run.folder} cannot be written: {error.strerror or error}"
            if error.errno in _FULL:
                raise CannotRunError(ErrorType.DISK_FULL, message, hint="free some space") from error
            raise CannotRunError(ErrorType.CONFIG_ERROR, message, hint="look at its owner and mode") from error
        if room.config.preflight_seconds and found.values["url"] is not None:
            await check_provider(found.values, seconds=room.config.preflight_seconds)
        run.deadline = room.clocks.awake() + it.plan.timeout_seconds  # for who must adopt it before it is ready
        stdout, stderr, *stdin = run.fds
        return ChildSpec(
            unit=run.unit,
            argv=found.argv,
            cwd=str(run.home),
            env={**found.env, **room.own},
            limits=tree_limits(it.plan.processes, it.plan.cpu_percent),
            max_rss_bytes=it.plan.memory_bytes,
            stdin_fd=stdin[0] if stdin else None,
            stdout_fd=stdout,
            stderr_fd=stderr,
        )

    async def _check_budget(self, run: Run) -> None:
        room, pipe = self._room, run.definition
        tokens_max, cost_max = pipe.daily_tokens if pipe else None, (pipe and pipe.daily_cost) or room.config.daily_cost
        if tokens_max is None and cost_max is None:
            return
        now = datetime.fromtimestamp(room.clocks.wall(), ZoneInfo(room.zone_name(run.definition)))
        today = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        tokens, cost = await usage_since(room.ledger, today, run.name)
        if tokens_max is not None and tokens >= tokens_max:
            used = f"{tokens} tokens today of {tokens_max}"
        elif cost_max is not None and cost >= cost_max:
            used = f"{cost:.4f} USD today of {cost_max:g}"
        else:
            return
        raise CannotRunError(ErrorType.BUDGET_EXCEEDED, f"the pipe's daily budget is used up: {used}")

    async def ready(self, run: Run) -> None:
        """Tell that it runs: an agent is ready once it is there."""
        it, warnings = run.execution, list(run.launch.warnings) if run.launch else []
        self._room.supervisor.say(
            "execution_started", run, pid=it.pid, queue_wait_ms=it.queue_wait_ms, warnings=warnings
        )
        run.close_fds()

    def revive(self, child: Child, note: Note | None) -> Run:
        """Return the run of a held child; one that nobody knows is only stopped."""
        own = note.own if note is not None else {}
        nobody = Execution(id=0, pipe_name=child.unit.partition(":")[2])
        run = self._run_of(self._known.get(own.get("execution", 0), nobody), child.key)
        if run.execution.status is Status.RUNNING:
            self._room.add(run)
            self._room.line.running[run.id] = run.execution
        run.goes_on = run.id in self._retried
        run.ready_at, run.phase = child.started_at, Phase.READY
        run.heard_at = self._room.clocks.boot()
        run.deadline = float(own.get("deadline") or self._room.clocks.awake())
        if note is not None and note.stopping is not None:
            run.want_end(Cause(own.get("cause") or Cause.CANCELLED), own.get("detail"))
        return run

    async def adopt(self, run: Run, _note: Note) -> bool:
        return run.execution.status is Status.RUNNING

    def fail_waiters(self, run: Run) -> None:
        """Say nothing: whoever waits hears of its end when its row is final."""

    async def release(self, run: Run) -> None:
        """Remove what it must not leave, and do what follows: while the keeper holds it, a crash can be made good."""
        run.close_fds()
        if run.phase is Phase.COLD and run.child is not None:
            return  # cut off, so that its end may not be written: the next start reads its output, and says what it was
        await run.finish()

    def gone(self, run: Run) -> None:
        """Leave one whose end is not recorded: the keeper is lost."""
        if not run.execution.status.is_final:
            run.leave()

    # -- the start of a control plane --------------------------------------------------------------------------------

    async def adopt_all(self) -> None:
        """Take over what an earlier control plane left; returns when all is decided.

        An agent that the keeper holds goes on, with its timeout from where it was counted; its output is read again
        from byte 0. A row that says `running` and whose process nobody holds was cut off: failed, `interrupted`, its
        output folder is marked, never deleted; one that was never spawned waits in line again. What waited waits on.
        """
        room = self._room
        rows = {row.id: row for row in await open_rows(room.ledger)}
        notes = [read_note(child.tag) for child in await room.placement.list("pipe:")]
        held = {number for note in notes if note is not None and (number := note.own.get("execution"))}
        self._known = {number: row for number, row in rows.items() if number in held}
        self._retried = {row.retry_of for row in rows.values()}
        for number in held - set(rows):  # its end was recorded, and the control plane came no further
            self._known |= {row.id: row for row in await EXECUTIONS.find(room.ledger, "WHERE id = ?", number)}
        for run in await room.supervisor.adopt(self):
            if run.execution.pid is None:  # the control plane before us ended between the spawn and this
                await room.ledger.write(run.spawned(run.child))
            room.task(run.see_through())
        self._known = {}
        for row in rows.values():
            if row.id in held:
                continue
            if row.status is Status.QUEUED:
                room.push(self._run_of(row))
            elif row.pid is None and (row.started_at or 0.0) > room.placement.caps.keeper_started_at:
                # Of an earlier keeper nobody knows what it had spawned: nothing is run twice.
                await room.ledger.write(EXECUTIONS.update(row.id, OPEN, **_AGAIN))
                room.push(self._run_of(structs.replace(row, **_AGAIN)))
            else:
                await self._interrupted(self._run_of(row))

    def _run_of(self, row: Execution, key: str | None = None) -> Run:
        return Run(self._room, row, self._room.definition_of(row.pipe_name), key)

    async def _interrupted(self, run: Run) -> None:
        room, run.wanted = self._room, Reason.INTERRUPTED
        run.want_end(Cause.INTERRUPTED)
        room.add(run)
        try:
            await run.end_now(ended(run.execution.instance or "", room.clocks.wall(), Reason.INTERRUPTED.value))
        except PxError as error:
            _log.error("pipe_interruption_not_recorded", execution=run.id, detail=error.detail)
