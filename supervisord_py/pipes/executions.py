"""Executions that are not final: recorded, in line, at work; what is spawned for one, how it is
adopted.

Processes that outlived their keeper are the keeper's: it sweeps them before anything is adopted.

Law: the row of one is on its way to the ledger before anything else happens, and before every row
that follows from it; whoever promises it to somebody flushes the ledger first. Every end frees its
slot, whatever became of the execution.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import structlog
from msgspec import structs

from supervisord_py.errors import PxError, ShuttingDownError
from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.instances import ended
from supervisord_py.ledger.pipes import (
    EXECUTIONS,
    OPEN,
    PIPE_STATES,
    ErrorType,
    Execution,
    Outcome,
    Status,
    Trigger,
)
from supervisord_py.ledger.table import together
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.context import FEW, PipesContext
from supervisord_py.pipes.launch import check, write_files
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.outcome import REASONS, Cause
from supervisord_py.pipes.preflight import check_provider
from supervisord_py.pipes.queue import Queue
from supervisord_py.pipes.run import Run, measured
from supervisord_py.pipes.schedule import Manual
from supervisord_py.process import clock
from supervisord_py.process.instance import Note, Phase, read_note
from supervisord_py.process.model import Child, ChildSpec, Reason, tree_limits

LOOK_SECONDS = 1.0
_AGAIN = {
    "status": Status.QUEUED,
    "started_at": None,
    "queue_wait_ms": None,
    "instance": None,
    "progress": None,
}
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
_log = structlog.get_logger(__name__)


class Executions(PipesContext):
    """All executions: what is at work or in line in memory, which is ahead of the ledger, and
    the others in that.
    """

    announce: Callable[[Run], Awaitable[None]]  # tells other pipes of an end; the room sets it

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_ending = False  # nothing new is taken in
        self.is_gate_open = False  # who waits may be started
        # each that is not final, or of which the end has still to be told
        self.runs: dict[int, Run] = {}
        self.of_pipes: dict[str, dict[int, Run]] = {}  # the same, by pipe
        self.line = Queue()
        self.listening: tuple[PipeDefinition, ...] = ()  # the pipes that wait for events
        # who is due may be another: a pipe, a clock changed, a pipe with times is free
        self.due_bell = asyncio.Event()
        self.listener_bell = asyncio.Event()  # who waits for which events may be another

    def refuse_at_the_end(self) -> None:
        if self.is_ending:
            raise ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")

    def look_again(self) -> None:
        self.listening = tuple(each for each in self.usable() if each.events)
        self.listener_bell.set()
        self.due_bell.set()

    # -- who is there ------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        self.runs[run.id] = self.of_pipes.setdefault(run.execution.pipe_name, {})[run.id] = run

    def of_pipe(self, pipe: str) -> tuple[Run, ...]:
        found = self.of_pipes.get(pipe, {})
        return tuple(found[number] for number in sorted(found))

    def running(self, pipe: str) -> Run | None:
        return next(
            (it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None
        )

    def queued(self, pipe: str) -> tuple[Run, ...]:
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)

    def view(self, run: Run) -> Execution:
        """Return an execution as it stands, with its place in line."""
        # who has a slot and is being started is the first
        if run.execution.status is Status.QUEUED:
            position = self.line.position(run.execution) or 1
            return structs.replace(run.execution, position=position, waits_for=self.waits_for(run))
        return run.execution

    def waits_for(self, run: Run) -> str | None:
        """Say what keeps an execution in its line; None where it is not in one, or nothing keeps
        it.
        """
        if self.line.position(run.execution) is None:
            return None
        obstacle = self.line.obstacle(run.execution, self.clocks.wall(), self.config)
        return None if obstacle is None else obstacle.words

    # -- recording ---------------------------------------------------------------------------------

    async def enqueue(
        self,
        definition: PipeDefinition,
        chosen: Execution,
        triggers: Sequence[Mapping[str, Any]],
        *,
        claim: ledger_pipes.Claim | None = None,
        cause: int | None = None,
        warnings: Sequence[str] = (),
        **change: Any,
    ) -> tuple[Run, ...]:
        """Record executions, all or none, with a `change` of what is remembered of their pipe, and
        put them in line.

        `chosen` is what each of them is, but for its trigger; `cause` the event of the daemon's
        that led to them. With a `claim` on an event: in its transaction, where it is free, else
        none. Without one, nobody has a turn. Raises LedgerDegradedError: the disk takes nothing,
        and nobody can know whether it is claimed.
        """
        rows, is_refused = (
            [self.build(definition, chosen, **each) for each in triggers],
            chosen.status.is_final,
        )
        operations = [EXECUTIONS.insert(row) for row in rows]
        for row in rows if is_refused else ():  # what it means for its pipe is of one piece with it
            refusal = Outcome(row.status, row.error_type)
            change |= self.states.change_by(row, refusal, row.queued_at, goes_on=False)
            self.states.take(definition.name, **change)
        if change:
            self.states.take(definition.name, **change)
            operations.append(PIPE_STATES.merge(definition.name, **change))
        # One that fails at once keeps no claim: told again, the event may start the pipe.
        if claim is None or is_refused:
            self.ledger.post(together(*operations))
        elif not await self.ledger.call(ledger_pipes.claimed(claim, together(*operations))):
            return ()
        # once, and after whoever asked has seen them in line
        asyncio.get_running_loop().call_soon(self.admit)
        return tuple(self.take_in(definition, row, cause, warnings) for row in rows)

    def take_in(
        self,
        definition: PipeDefinition,
        row: Execution,
        cause: int | None = None,
        warnings: Sequence[str] = (),
    ) -> Run:
        run = Run(self, row, definition)
        run.event = cause
        facts: dict[str, Any] = {
            "trigger": row.trigger.value,
            "retry_of": row.retry_of,
            "preset": row.preset.id,
        }
        self.supervisor.say("execution_queued", run, **facts, warnings=list(warnings))
        if row.status is Status.QUEUED:
            self.push(run)
        else:
            self.add(run)
            self.task(run.finish())
        return run

    # -- who runs ----------------------------------------------------------------------------------

    def push(self, run: Run) -> None:
        """Put an execution into the line; whoever does so sees to it that `admit` follows."""
        self.add(run)
        self.line.push(run.execution)

    def admit(self) -> None:
        for number in self.line.admit(self.clocks.wall(), self.config) if self.is_gate_open else ():
            self.task(self.runs[number].go())

    async def end(self, run: Run, why: str) -> Execution:
        """End an execution, whatever it is at; return it as it became.

        Raises KeeperTimeoutError if the keeper does not answer: the end follows once it does.
        """
        waited = run.want_end(Cause.CANCELLED, why) and self.line.remove(run.id)
        if waited:
            self.task(run.end_now())
            await run.until_done()
        else:
            await self.placement.unless_silent(
                run.until_done(), f"execution {run.id} ended", unit=run.unit
            )
        return run.execution

    async def cancel_all(self, pipe: str, why: str) -> tuple[Execution, ...]:
        """Cancel all of a pipe's: first those that wait, so that none of them starts in between."""
        order = sorted(self.of_pipe(pipe), key=lambda run: run.execution.status is Status.RUNNING)
        return tuple(await asyncio.gather(*(self.end(run, why) for run in order)))

    async def after(self, run: Run) -> None:
        """Do what follows from an end whose row is final, and free the slot."""
        it = run.execution
        facts: dict[str, Any] = {
            name: getattr(it, name) for name in ("error_message", "exit_code", "duration_ms")
        }
        error = it.error_type and it.error_type.value
        facts["warnings"] = list(it.warnings)
        self.supervisor.say(
            f"execution_{it.status.value}", run, REASONS.get(run.cause), error_type=error, **facts
        )
        self.states.ended(it)
        try:
            if run.following is not None and run.definition is not None:
                self.take_in(run.definition, run.following, run.event)
            if self.listening:
                await self.announce(run)
            if (
                it.trigger is Trigger.SCHEDULED
                and it.status is Status.CANCELLED
                and it.started_at is None
            ):
                # Else it would read as if what was decided (its first run, say) had come to pass.
                words = f"execution {run.id} did not run: {it.error_message or 'cancelled'}"
                self.states.decided(it.pipe_name, words)
        except Exception:  # that it fails must not keep the slot
            _log.exception("pipe_aftermath_failed", unit=run.unit, execution=run.id)
        finally:
            self.runs.pop(run.id, None)
            self.of_pipes.get(it.pipe_name, {}).pop(run.id, None)
            self.line.running.pop(run.id, None)
            run.done.set()
            run.tell()
            self.admit()
            if run.definition is None or not isinstance(run.definition.schedule, Manual):
                self.due_bell.set()  # a pipe that has times is free

    def close_gate(self) -> None:
        self.is_ending, self.is_gate_open = True, False

    async def look_at_runs(self) -> NoReturn:
        while True:
            await clock.tick(LOOK_SECONDS)
            if self.watch.look():
                self.due_bell.set()
            if (
                self.line.next_deadline is not None
                and self.line.next_deadline <= self.clocks.wall()
            ):
                self.admit()
            at_work = [
                it for it in self.runs.values() if it.phase is Phase.READY and not it.is_left
            ]
            if at_work:
                stamps = (
                    measured(at_work)
                    if len(at_work) <= FEW
                    else await asyncio.to_thread(measured, at_work)
                )
                for run, stamp in zip(at_work, stamps, strict=True):
                    try:
                        run.look(stamp, self.watch.resumed_at)
                    # it ends that run, and the others are looked at as before
                    except Exception as defect:
                        run.broke(defect)


def _cure_of(error: OSError) -> str:
    """Return what to do about a file or folder that cannot be written."""
    if error.errno in _FULL:
        return "free some space"
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        # It is a part of the path that is in the way.
        path = Path(str(error.filename))
        while not path.exists():
            path = path.parent
        return f"a folder must be there: mv {path} {path}.old"
    return "give it to the user of the daemon: chown, chmod u+rwx"


class RunDriver:
    kind = "pipe"

    def __init__(self, room: Executions) -> None:
        self._room = room
        # rows of executions whose processes are held, while they are adopted
        self._known: dict[int, Execution] = {}
        # executions of which the next try is in line, at that time
        self._retried: set[int | None] = set()

    async def prepare(self, run: Run) -> ChildSpec:
        """Check its budget, and make everything ready for the spawn: its files are written, its
        descriptors open.

        Raises CannotRunError: with the error type of the row.
        """
        room, it, redact = (
            self._room,
            run.execution,
            run.definition.redact if run.definition else (),
        )
        await self._check_budget(run)
        run.launch = found = await check(room.shelf, it, run.home, redact)
        run.terms, run.stop_seconds = found.terms, found.terms.stop_seconds
        try:
            # a few small ones: cheaper than a thread
            write_files(found, run.folder, it.rendered_prompt or "", run.fds)
        except OSError as error:
            message = f"{error.filename or run.folder} cannot be written: {error.strerror or error}"
            kind = ErrorType.DISK_FULL if error.errno in _FULL else ErrorType.CONFIG_ERROR
            raise CannotRunError(kind, message, hint=_cure_of(error)) from error
        if room.config.preflight_seconds and found.values["url"] is not None:
            await check_provider(found.values, seconds=room.config.preflight_seconds)
        # for who must adopt it before it is ready
        run.deadline = room.clocks.awake() + it.plan.timeout_seconds
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
        tokens_max, cost_max = (
            pipe.daily_tokens if pipe else None,
            (pipe and pipe.daily_cost) or room.config.daily_cost,
        )
        if tokens_max is None and cost_max is None:
            return
        now = datetime.fromtimestamp(room.clocks.wall(), ZoneInfo(room.zone_name(run.definition)))
        today = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        tokens, cost = await ledger_pipes.usage_since(room.ledger, today, run.name)
        if tokens_max is not None and tokens >= tokens_max:
            used = f"{tokens} tokens today of {tokens_max}"
        elif cost_max is not None and cost >= cost_max:
            used = f"{cost:.4f} USD today of {cost_max:g}"
        else:
            return
        raise CannotRunError(
            ErrorType.BUDGET_EXCEEDED, f"the pipe's daily budget is used up: {used}"
        )

    async def ready(self, run: Run) -> None:
        it, told = run.execution, list(run.launch.warnings) if run.launch else []
        self._room.supervisor.say(
            "execution_started", run, pid=it.pid, queue_wait_ms=it.queue_wait_ms, warnings=told
        )
        run.close_fds()

    def revive(self, child: Child, note: Note | None) -> Run:
        own = note.own if note is not None else {}
        nobody = Execution(id=0, pipe_name=child.unit.partition(":")[2])
        run = self._run_of(self._known.get(own.get("execution", 0), nobody), child.key)
        if run.execution.status is Status.RUNNING:
            self._room.add(run)
            # the control plane before us ended before that was written
            if run.execution.pid is None:
                self._room.ledger.post(run.spawned(child))
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
        """Remove what it must not leave, and do what follows: while the keeper holds it, a crash
        can be made good.
        """
        run.close_fds()
        if run.phase is Phase.COLD and run.child is not None:
            # cut off, so that its end may not be written: the next start reads its output, and says
            # what it was
            return
        await run.finish()

    def gone(self, run: Run) -> None:
        """Leave one whose end is not recorded: the keeper is lost."""
        if not run.execution.status.is_final:
            run.leave()

    # -- the start of a control plane --------------------------------------------------------------

    async def adopt_all(self) -> None:
        """Take over what an earlier control plane left; returns when all is decided.

        An agent that the keeper holds goes on, with its timeout from where it was counted; its
        output is read again from byte 0. A row that says `running` and whose process nobody holds
        was cut off: failed, `interrupted`, its output folder is marked, never deleted; one that was
        never spawned waits in line again. What waited waits on.
        """
        room = self._room
        rows = {row.id: row for row in await ledger_pipes.open_rows(room.ledger)}
        notes = [read_note(child.tag) for child in await room.placement.list("pipe:")]
        held = {
            number for note in notes if note is not None and (number := note.own.get("execution"))
        }
        self._known = {number: row for number, row in rows.items() if number in held}
        self._retried = {row.retry_of for row in rows.values()}
        # its end was recorded, and the control plane came no further
        for number in held - set(rows):
            self._known |= {
                row.id: row for row in await EXECUTIONS.find(room.ledger, "WHERE id = ?", number)
            }
        for run in await room.supervisor.adopt(self):
            room.task(run.see_through())
        self._known = {}
        for row in rows.values():
            if row.id in held:
                continue
            if row.status is Status.QUEUED:
                room.push(self._run_of(row))
            elif (
                row.pid is None and (row.started_at or 0.0) > room.placement.caps.keeper_started_at
            ):
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
            await run.end_now(
                ended(run.execution.instance or "", room.clocks.wall(), Reason.INTERRUPTED.value)
            )
        except PxError as error:
            _log.error("pipe_interruption_not_recorded", execution=run.id, detail=error.detail)
