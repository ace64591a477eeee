"""One execution from its place in line to its end. The supervisor runs it, by `driver.py`.

Laws:
- The row says `running` before anything is spawned, and who it became right after. Whatever happens it becomes final
  once, with the first reason that was given, before the keeper forgets the process.
- Also after a normal exit the tree is stopped: what tools left in sessions of their own goes, too (pi does that with
  every shell command). What survives is named in the row and stopped again and again; it never keeps the slot.
- A timeout counts suspended time, and is checked by looking, not by one long sleep: the timers of the loop do not
  count suspend.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import structlog

from supervisord_py.errors import ConflictError, KeeperLostError, PxError
from supervisord_py.ledger.pipe_executions import (
    ErrorType,
    Execution,
    Outcome,
    Status,
    change_open,
    finish,
    mark_running,
)
from supervisord_py.ledger.pipe_state import PIPE_STATES
from supervisord_py.ledger.store import LedgerDegradedError
from supervisord_py.ledger.table import together
from supervisord_py.pipes import output
from supervisord_py.pipes.ending import close
from supervisord_py.pipes.launch import recall_secrets
from supervisord_py.pipes.outcome import Cause, ErrorPattern, SuccessRule, ceiling_exceeded
from supervisord_py.pipes.output import BOTH, DISK_PAUSE_SECONDS, Copier
from supervisord_py.pipes.scheduler import Resumes, whole_ms
from supervisord_py.process.instance import Instance
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.ledger.table import Operation
    from supervisord_py.pipes.launch import LaunchSpec
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.outcome import NextTry
    from supervisord_py.pipes.room import Pipes
    from supervisord_py.process.model import Child

LOOK_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, GROWTH = 0.01, 0.25, 1.5  # between two looks for more output
CHARACTERS_A_SECOND = 32 * 1024
"""So much text of a run goes into its row: a full one, at each look, would wear out the disk for hours."""
REASONS = {
    Cause.NOBODY: Reason.EXIT,
    Cause.SETTLED: Reason.EXIT,
    Cause.TIMEOUT: Reason.TIMEOUT,
    Cause.SILENT: Reason.TIMEOUT,
    Cause.CANCELLED: Reason.CANCELLED,
    Cause.SHUTDOWN: Reason.SHUTDOWN,
    Cause.INTERRUPTED: Reason.INTERRUPTED,
    Cause.BUDGET: Reason.RUNTIME_LIMIT,
    Cause.OUTPUT: Reason.RUNTIME_LIMIT,
}
_log = structlog.get_logger(__name__)


class RunTerms(msgspec.Struct, frozen=True):
    """How an agent that was started is to be read, judged and stopped: fixed at its start, kept in its row.

    An edit of agents.toml changes what starts from now on, never how a run under way is judged. Keys are not in here:
    who goes on with a run looks them up again.

    Attributes:
        success, errors: When it has succeeded, and what its errors look like.
    """

    parser: str = "text"  # name of its output format
    success: SuccessRule = SuccessRule()
    errors: tuple[ErrorPattern, ...] = ()
    settle_seconds: float = 2.0  # grace after it said that it is done
    stop_seconds: float = 5.0  # from TERM to KILL
    stop_signal: int | None = None  # what it is asked to end with
    patterns: tuple[str, ...] = ()  # regular expressions whose matches are never stored
    copied: bool = False  # it writes `raw.*`, of which the files that are kept are made


class Run(Instance):
    """One execution that is not final, or has just become it.

    Attributes:
        execution: As it stands, without the texts of its output.
        definition: What its pipe was when it was queued; None where that is not known any more.
        cause, detail: Why it is to end, in words; NOBODY while it is not.
        deadline: When its timeout is over, on the clock that counts suspend.
        heard_at: When it was last noticed to have written something, same clock.
        trouble: Why its output is not stored at present.
        is_short: The disk took no output for a while: not all of it may be there.
        outcome: How it ended, once that is decided.
        following: The next try, where one follows.
        news: Set at the next change.
        done: Set when all that follows from its end is done.
        is_left: This control plane goes; the run goes on without it.
    """

    words: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("spawned", "start_failed", "stopping", "stopped", "died"), ""
    ) | {"adopted": "execution_adopted"}
    logged = False

    def __init__(
        self, room: Pipes, execution: Execution, definition: PipeDefinition | None, key: str | None = None
    ) -> None:
        super().__init__(key or room.placement.new_key(), execution.unit)
        self.room = room
        self.execution = execution
        self.definition = definition
        self.terms = RunTerms()
        with suppress(msgspec.MsgspecError):
            self.terms = msgspec.json.decode(execution.progress or "", type=RunTerms)
        self.stop_seconds = self.terms.stop_seconds
        self.cause = Cause.NOBODY
        self.detail: str | None = None
        self.deadline = self.heard_at = 0.0
        self.trouble: str | None = None
        self.is_short = False
        self.outcome: Outcome | None = None
        self.following: NextTry | None = None
        self._news: asyncio.Event | None = None  # there while somebody waits
        self.done = asyncio.Event()
        self.is_left = False
        self.is_claimed = False
        self.launch: LaunchSpec | None = None
        self.fds: tuple[int, ...] = ()
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._copier: Copier | None = None
        self._settled_until = math.inf
        self.is_at_work = False  # to be looked at
        self._grown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stamp: tuple[Any, ...] = ()
        self._row_due = 0.0
        self._is_stale = False
        self._final: dict[str, Any] = {}

    @property
    def id(self) -> int:
        return self.execution.id

    @property
    def home(self) -> Path:
        return self.definition.folder if self.definition else self.room.config.pipes_dir / self.name

    @property
    def died(self) -> bool:
        """Whether its end is an accident: the outcome says so, not the exit."""
        return False

    @property
    def is_leaving_line(self) -> bool:
        """Whether it is to end, or has ended, before it ran."""
        return self.cause is not Cause.NOBODY and self.execution.started_at is None

    @property
    def folder(self) -> Path:
        return self.room.folder(self.id)

    @property
    def news(self) -> asyncio.Event:
        self._news = self._news or asyncio.Event()
        return self._news

    def tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def become(self, **changes: Any) -> None:
        self.execution = msgspec.structs.replace(self.execution, **changes)
        self.tell()

    def want_end(self, cause: Cause, detail: str | None = None) -> bool:
        """Want its end; say whether this was the first to want it."""
        if self.cause is not Cause.NOBODY:
            return False
        self.cause, self.detail = cause, detail
        self._turn.set_result(None)
        return True

    def open_files(self, found: LaunchSpec) -> None:
        """Take the terms of an agent, and open what its process is to have. Blocking."""
        adapter, stop, config = found.adapter, found.adapter.stop, self.room.config
        patterns = (*config.output.redact, *(self.definition.redact if self.definition else ()))
        self.terms = RunTerms(
            parser=adapter.parser,
            success=adapter.success,
            errors=adapter.errors,
            settle_seconds=config.settle_seconds if stop.settle_seconds is None else stop.settle_seconds,
            stop_seconds=config.stop_seconds if stop.grace_seconds is None else stop.grace_seconds,
            stop_signal=stop.number,
            patterns=patterns,
            copied=adapter.parser != "text" or bool(found.secrets or patterns),
        )
        self.stop_seconds = self.terms.stop_seconds
        self.fds = output.open_for_child(self.folder, copied=self.terms.copied)
        if found.stdin_file is not None:
            self.fds += (os.open(found.stdin_file, os.O_RDONLY | os.O_CLOEXEC),)

    def close_fds(self) -> None:
        """Close what was opened for its process: that has it, or will never have it."""
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)

    def leave(self) -> None:
        self.is_left = True
        self.tell()

    # -- what the supervisor writes of it --------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {"execution": self.id}

    def own_note(self) -> dict[str, Any]:
        return {"execution": self.id, "deadline": self.deadline, "cause": self.cause.value, "detail": self.detail}

    def starting(self) -> Operation:
        """Say that it runs: in its row, in what is remembered of its pipe, and in that of its process, together."""
        now = self.room.clocks.moment()
        wait_ms = max(0, round((now - self.execution.queued_at) * 1000))
        known = {"started_at": now, "queue_wait_ms": wait_ms, "instance": self.key}
        self.is_claimed = True
        self.become(status=Status.RUNNING, **known)
        seconds, progress = self.execution.plan.timeout_seconds, msgspec.json.encode(self.terms).decode()
        claim = mark_running(self.id, timeout_seconds=seconds, progress=progress, **known)
        state = PIPE_STATES.merge(self.name, last_run_at=now)
        return together(claim, state, super().starting())

    def spawned(self, child: Child) -> Operation:
        who, found, clocks = child.identity, self.launch, self.room.clocks
        self.room.states.take(self.name, last_run_at=self.execution.started_at)
        self.heard_at = clocks.boot()
        self.deadline = self.heard_at + self.execution.plan.timeout_seconds  # not before it began
        known = {"pid": who.pid, "start_time": who.start_time, "boot_id": who.boot_id}
        known |= {"started_at": whole_ms(child.started_at)}
        if found is not None:
            known |= {"agent_version": found.version.text, "session_path": found.session_path}
        self.become(**known)
        return together(change_open(self.id, **known), super().spawned(child))

    async def ended(self) -> Operation:
        if self.id and self.execution.status.is_final and self.outcome is None:
            await self.room.intake.follow_up(self)
        return together(await self.final_row(), await super().ended())

    # -- its life ---------------------------------------------------------------------------------------------------

    async def go(self) -> None:
        starting = asyncio.ensure_future(self.room.supervisor.start(self.room.driver, self))
        try:
            await asyncio.wait((starting, self._turn), return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
        await asyncio.wait([starting])
        error = None if starting.cancelled() else starting.exception()
        if self.cause is Cause.SHUTDOWN and not self.is_claimed:
            await self.room.driver.release(self)
            self.leave()  # it waits on, for the next start
        elif starting.cancelled() or error is not None:
            await self._stop()
        else:
            await self.see_through()

    async def see_through(self) -> None:
        try:
            await self._until_over()
        except KeeperLostError:
            _log.error("pipe_run_lost", unit=self.unit, execution=self.id)  # the next start tells of it
            self.leave()
            return
        except Exception as error:
            _log.exception("pipe_run_broke", unit=self.unit, execution=self.id)
            self.outcome = Outcome(Status.FAILED, ErrorType.UNKNOWN, f"{type(error).__name__}: {error}")
        await self._stop()

    async def _until_over(self) -> None:
        """Wait until it has ended by itself, or is to end; take its output and look after it meanwhile."""
        loop, clocks = asyncio.get_running_loop(), self.room.clocks
        copier = await self._open_output()
        exited = asyncio.ensure_future(self.room.supervisor.wait(self))
        pause, self.is_at_work = FIRST_PAUSE_SECONDS, True
        try:
            while not exited.done() and not self._turn.done():
                left = min(self._settled_until - loop.time(), self.deadline - clocks.boot())
                if self.terms.copied and (pause < LONGEST_PAUSE_SECONDS or self._news is not None):
                    left = min(left, pause)  # else the next look says whether there is more
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait((exited, self._turn, self._grown), timeout=max(0.0, left), return_when=first)
                if self._grown.done():
                    self._grown.result()
                if self.terms.copied and not exited.done():
                    if self._grown.done():
                        self._grown, pause = loop.create_future(), FIRST_PAUSE_SECONDS
                    pause = await self._copy(copier, pause)
                    if loop.time() >= self._settled_until:
                        self.want_end(Cause.SETTLED)
                if clocks.boot() >= self.deadline and not exited.done():
                    self.want_end(Cause.TIMEOUT, _too_late(self.execution))
            if exited.done():
                exited.result()
        finally:
            self.is_at_work = False
            exited.cancel()

    async def _stop(self) -> None:
        """End what is there of it; returns when nothing is left, or what survives is named."""
        supervisor, driver = self.room.supervisor, self.room.driver
        if self.cause is not Cause.NOBODY:
            self.wanted = REASONS[self.cause]
        await self._ask_politely()
        stopping = supervisor.task(supervisor.stop(driver, self, self.wanted))
        stopped = asyncio.ensure_future(self.stopped.wait())  # a stop that breaks may never set it
        await asyncio.wait((stopping, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self.report is not None and self.report.survivors and not self._final:
            await self.room.ledger.write(together(await self.final_row()))
            await driver.tidy(self)
            await self.room.after(self)
            return
        await asyncio.wait([stopping])

    async def _ask_politely(self) -> None:
        """Send the adapter's own signal first, where it has one that is not TERM; its grace counts twice then."""
        number, placement = self.terms.stop_signal, self.room.placement
        if self.record or self.child is None or number in {None, signal.SIGTERM, signal.SIGKILL}:
            return
        with suppress(PxError):
            await self.room.supervisor.annotate(self)
            await placement.signal(self.key, number or signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.terms.stop_seconds):
                    await self.room.supervisor.wait(self)

    # -- its output -------------------------------------------------------------------------------------------------

    async def _open_output(self) -> Copier:
        if self._copier is None:
            secrets: tuple[str, ...] = ()
            if self.terms.copied:
                if self.launch is not None:
                    secrets = tuple(each.reveal() for each in self.launch.secrets)
                else:
                    secrets = await recall_secrets(self.execution, self.home, self.room.shelf)
            copied, patterns = self.terms.copied, self.terms.patterns
            self._copier = Copier(self.folder, self.terms.parser, copied=copied, secrets=secrets, patterns=patterns)
        return self._copier

    async def _copy(self, copier: Copier, pause: float) -> float:
        """Make what is kept of what has come, and look at what the agent has said; return when to do it again."""
        try:
            moved = await asyncio.to_thread(copier.step)
        except OSError as error:
            self.trouble, self.is_short = str(error), True
            return DISK_PAUSE_SECONDS
        self.trouble = None
        if not moved:
            return min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, pause * GROWTH))
        summary = copier.summary
        if summary.usage != self.execution.usage:
            self.become(**msgspec.structs.asdict(summary.usage))
            if sentence := ceiling_exceeded(summary.usage, self.execution.plan):
                self.want_end(Cause.BUDGET, sentence)
        if not summary.settled:
            self._settled_until = math.inf
        elif self._settled_until == math.inf:
            self._settled_until = asyncio.get_running_loop().time() + self.terms.settle_seconds
            self.room.supervisor.say("execution_settled", self)
        self.tell()
        return 0.0

    def look(self, stamp: tuple[tuple[int, int], ...], resumed_at: float | None) -> None:
        """Take in how much it has written (`measured`), and end it where that is too much, or its time is over."""
        clocks, limits = self.room.clocks, self.room.config.output
        now = clocks.boot()
        if now >= self.deadline:
            self.want_end(Cause.TIMEOUT, _too_late(self.execution))
        if stamp != self._stamp:
            if self._stamp or any(written for written, _ in stamp):  # that its files are there is no word of it
                self.heard_at = now
            self._stamp, self._is_stale = stamp, True
            self.tell()
            if self.terms.copied and not self._grown.done():
                self._grown.set_result(None)
        if any(written > limits.file_bytes for written, _ in stamp):
            self.want_end(
                Cause.OUTPUT, f"wrote more than {limits.file_bytes} bytes of output (pipes.output_file_bytes)"
            )
        patience = self.room.config.scheduler.wake_silence_seconds
        if resumed_at is not None and self.heard_at <= resumed_at and now - resumed_at >= patience:
            self.want_end(Cause.SILENT, f"said nothing for {patience:g} s after the machine woke up")
        if self._is_stale and clocks.awake() >= self._row_due:
            self._is_stale, self._row_due = False, math.inf
            self.room.task(self._write_row())

    def break_off(self, defect: Exception) -> None:
        self.is_at_work = False
        if not self._grown.done():
            self._grown.set_exception(defect)

    async def _write_row(self) -> None:
        """Bring its row up to date; the more there is to write, the later again."""
        facts = await asyncio.to_thread(self.texts)
        self._row_due = self.room.clocks.awake() + len(facts["stdout"] + facts["stderr"]) / CHARACTERS_A_SECOND
        if self._final or self.execution.status.is_final:
            return
        self.become(stdout_bytes=facts["stdout_bytes"], stderr_bytes=facts["stderr_bytes"])
        with suppress(LedgerDegradedError):  # the end of the run says all of it again
            usage = msgspec.structs.asdict(self.execution.usage)
            await self.room.ledger.call(change_open(self.id, **facts, **usage))

    def measured(self) -> tuple[tuple[int, int], ...]:
        """Return how much it has written and when it last did, of each stream. Blocking."""
        found = []
        for stream in BOTH:
            try:
                status = (self.folder / output.child_file(stream, copied=self.terms.copied)).stat()
                found.append((status.st_size, status.st_mtime_ns))
            except OSError:
                found.append((0, 0))
        if output.disk_is_full(self.folder):
            self.trouble, self.is_short = os.strerror(errno.ENOSPC), True
        elif not self.terms.copied:
            self.trouble = None
        return tuple(found)

    def texts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for stream in BOTH:
            facts[stream.value] = output.row_text(self.folder, stream, self.room.config.output.row_bytes)
            facts[f"{stream.value}_bytes"] = output.size(self.folder, stream) or 0
        return facts

    # -- its end ----------------------------------------------------------------------------------------------------

    async def final_row(self) -> Operation | None:
        """Decide how it ended, and what follows; return what writes it down, None where that is done."""
        if self._final or self.execution.status.is_final:
            return None
        started = self.execution.started_at
        began = started is not None and not isinstance(self.error, ConflictError)
        copier = await self._open_output() if self.child is not None or self.cause is Cause.INTERRUPTED else None
        outcome, facts, now = await asyncio.to_thread(close, self, copier, began=began)
        self.outcome, self.following = outcome, self.room.intake.next_try(self, outcome)
        change = self.room.states.change_by(self.execution, outcome, now, goes_on=self.following is not None)
        if self.is_claimed and self.child is None and began:
            self.room.states.take(self.name, last_run_at=started)
        self.room.states.take(self.name, **change)
        self._final = facts
        return finish(self.id, also=PIPE_STATES.merge(self.name, **change), **facts)

    @property
    def is_closed(self) -> bool:
        """Whether its end was decided here."""
        return bool(self._final)

    def take_final(self) -> None:
        if self._final and not self.execution.status.is_final:
            self.become(position=None, **self._final)


async def look_at_runs(room: Pipes) -> None:
    """Look at all that run, once a second: a thousand agents that say nothing are one thread's work of a moment."""
    resumes = Resumes(room.clocks)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        resumes.look()
        at_work = [run for run in room.runs.values() if run.is_at_work]
        if at_work:
            stamps = await asyncio.to_thread(lambda: [run.measured() for run in at_work])  # noqa: B023  awaited here
            for run, stamp in zip(at_work, stamps, strict=True):
                try:
                    run.look(stamp, resumes.resumed_at)
                except Exception as defect:  # it ends that run, and the others are looked at as before
                    run.break_off(defect)


def _too_late(execution: Execution) -> str:
    plan = execution.plan
    cut, wanted = f"did not end within {plan.timeout_seconds:g} s", plan.wanted_seconds
    return f"{cut} (timeout)" if wanted is None else f"{cut} (pipes.timeout_max_seconds; {wanted:g} s were asked for)"
