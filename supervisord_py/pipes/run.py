"""One execution from its place in line to its end, and how that is judged. The supervisor runs it,
by `RunDriver`.

Laws:
- The row says `running` before anything is spawned, and who it became right after. Whatever happens
  it becomes final once, with the first reason that was given, before the keeper forgets the
  process. The next try's row, the claim on the event that is given back and the pipe's counters are
  of one transaction with the end.
- Also after a normal exit the tree is stopped: what tools left in sessions of their own goes, too
  (pi does that with every shell command). What survives is named in the row and stopped again and
  again; it never keeps the slot.
- A timeout does not count suspended time: who was suspended could not work. Who is silent after a
  resume is ended (B2).
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog
from msgspec import structs

from supervisord_py.errors import ConflictError, InterruptedRunError, KeeperLostError, PxError
from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.pipes import (
    EXECUTIONS,
    OPEN,
    PIPE_STATES,
    CostSource,
    ErrorType,
    Execution,
    Outcome,
    Status,
    Usage,
)
from supervisord_py.ledger.table import Operation, together
from supervisord_py.pipes import output
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.context import PipesContext, whole_ms
from supervisord_py.pipes.cost import BY_FORMAT, When, cost_of
from supervisord_py.pipes.launch import LaunchSpec, RunTerms, cleanup, recall_secrets
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.outcome import REASONS, Cause, ExitInfo, ceiling_that_ends, judge
from supervisord_py.pipes.output import BOTH, DISK_PAUSE_SECONDS, POLL_SECONDS, Copier
from supervisord_py.pipes.streams import Summary
from supervisord_py.process.instance import LIMITS, Instance, describe
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Child, StopReport

WAKE_SILENCE_SECONDS = 60.0  # an agent that is silent for so long after a resume is ended
# how often the rest of the output is tried against a disk that takes nothing, once the process is
# gone
DISK_TRIES = 4
# characters of an error message: lists carry it, and a whole stderr has its own column
MESSAGE_MAX = 4000
TAIL_CHARS = 64 * 1024  # so much of each stream is looked at for the reason of a failure
_NO_PROGRAM = frozenset((errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR))
CUT_OFF = frozenset((
    ErrorType.TIMEOUT, ErrorType.CANCELLED, ErrorType.CRASH, ErrorType.INTERRUPTED,
    ErrorType.SHUTDOWN, ErrorType.BUDGET_EXCEEDED, ErrorType.RESOURCE_LIMIT, ErrorType.DISK_FULL,
))  # fmt: skip
"""After these, what it wrote may be half-done."""
_log = structlog.get_logger(__name__)


class Run(Instance):
    """One execution that is not final, or has just become it."""

    words: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("spawned", "ready", "start_failed", "stopping", "stopped", "died"), ""
    ) | {"adopted": "execution_adopted"}
    logged = False
    died = False  # whether its end is an accident: the outcome says so, not the exit

    def __init__(
        self,
        room: PipesContext,
        execution: Execution,
        definition: PipeDefinition | None,
        key: str | None = None,
    ) -> None:
        super().__init__(key or room.placement.new_key(), f"pipe:{execution.pipe_name}")
        self.room, self.execution, self.id = room, execution, execution.id
        # what its pipe was when it was queued; None where that is not known any more
        self.definition = definition
        self.folder = room.folder(execution.id)
        self.home = definition.folder if definition else room.config.pipes_dir / execution.pipe_name
        self.terms = RunTerms()
        if execution.progress:
            with suppress(msgspec.MsgspecError):
                self.terms = msgspec.json.decode(execution.progress, type=RunTerms)
        self.stop_seconds = self.terms.stop_seconds
        self.cause = Cause.NOBODY  # why it is to end, and the same in words; NOBODY while it is not
        self.detail: str | None = None
        # when it was last noticed to have written something, on the clock that counts suspend
        self.heard_at = 0.0
        # end of its timeout, of the grace once it is done; monotonic
        self.deadline, self.settles_at = 0.0, math.inf
        self.trouble: str | None = None  # why its output is not stored at present
        self.is_short = False  # the disk took no output for a while: not all of it may be there
        self.is_left = False  # this control plane goes; the run goes on without it
        self.final: dict[str, Any] = {}  # what its row says of its end, once that is decided
        self.goes_on = False  # another try follows, whose row is the next one
        self.following: Execution | None = None
        self.followers = 0
        self.done = asyncio.Event()  # all that follows from its end is done
        # done at the next change
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.launch: LaunchSpec | None = None
        # for its process: stdout, stderr, and stdin where it reads its prompt there
        self.fds: list[int] = []
        self._starting: asyncio.Task[Any] | None = None
        self._copier: Copier | None = None
        self._stamp: tuple[tuple[int, int], ...] = ()

    @property
    def is_leaving_line(self) -> bool:
        return self.cause is not Cause.NOBODY and self.execution.started_at is None

    def tell(self) -> None:
        """Wake everybody who waits for a change: followers, and who sees it through."""
        news, self.news = self.news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    def become(self, **changes: Any) -> None:
        self.execution = structs.replace(self.execution, **changes)
        self.tell()

    def want_end(self, cause: Cause, detail: str | None = None) -> bool:
        """Want its end; say whether this was the first to want it."""
        if self.cause is not Cause.NOBODY:
            return False
        self.cause, self.detail = cause, detail
        self.tell()
        if self._starting is not None:
            self._starting.cancel()
        return True

    def broke(self, defect: Exception) -> None:
        _log.error("pipe_run_broke", unit=self.unit, execution=self.id, exc_info=defect)
        self.want_end(Cause.BROKE, f"{type(defect).__name__}: {defect}")

    def leave(self) -> None:
        self.is_left = True
        self.tell()

    def refuse_if_left(self) -> None:
        """Raise InterruptedRunError where this control plane goes before it is over."""
        if self.is_left:
            said = (
                f"the control plane is being replaced or stopped; execution {self.id} is not lost"
            )
            hint = f"follow it again: `pxctl pipe tail {self.id}`"
            raise InterruptedRunError(said, hint=hint, execution=self.id)

    async def until_done(self) -> None:
        """Wait until all that follows from its end is done; raises as `refuse_if_left`."""
        while not self.done.is_set():
            self.refuse_if_left()
            await asyncio.wait((self.news,))

    def close_fds(self) -> None:
        while self.fds:
            os.close(self.fds.pop())

    # -- what the supervisor writes of it ----------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {"execution": self.id}

    def own_note(self) -> dict[str, Any]:
        return {
            "execution": self.id,
            "deadline": self.deadline,
            "cause": self.cause.value,
            "detail": self.detail,
        }

    def starting(self) -> Operation:
        """Say that it runs: in its row, in what is remembered of its pipe, and in that of its
        process, together.
        """
        now = self.room.clocks.moment()
        wait_ms = max(0, round((now - self.execution.queued_at) * 1000))
        known = {"started_at": now, "queue_wait_ms": wait_ms, "instance": self.key}
        self.become(status=Status.RUNNING, **known)
        claim = ledger_pipes.mark_running(
            self.id, progress=msgspec.json.encode(self.terms).decode(), **known
        )
        return together(
            claim, PIPE_STATES.merge(self.execution.pipe_name, last_run_at=now), super().starting()
        )

    def spawned(self, child: Child) -> Operation:
        who, found, clocks = child.identity, self.launch, self.room.clocks
        self.room.states.take(self.execution.pipe_name, last_run_at=self.execution.started_at)
        known = {"pid": who.pid, "start_time": who.start_time, "boot_id": who.boot_id}
        known |= {"started_at": whole_ms(child.started_at)}
        if found is not None:  # else an earlier control plane has spawned it
            self.heard_at, self.deadline = (
                clocks.boot(),
                clocks.awake() + self.execution.plan.timeout_seconds,
            )
            known |= {"agent_version": found.version, "session_path": found.session_path}
        self.become(**known)
        return together(EXECUTIONS.update(self.id, OPEN, **known), super().spawned(child))

    async def ended(self) -> Operation:
        return together(await self.conclude(), await super().ended())

    async def finish(self) -> None:
        """Be what its row says now, remove what it must not leave, and do what follows from its
        end.
        """
        if self.final and not self.execution.status.is_final:
            self.become(position=None, **self.final)
        if self.execution.status is Status.RUNNING:
            return  # the keeper was lost before its end was decided
        if self.terms.copied or not self.final:
            await asyncio.to_thread(output.remove_raw, self.folder)
        if self.id and self.execution.status.is_final and not self.done.is_set():
            await self.room.after(self)

    async def end_now(self, *also: Operation) -> None:
        await self.room.ledger.write(together(await self.conclude(), *also))
        await self.finish()

    # -- its life ----------------------------------------------------------------------------------

    async def go(self) -> None:
        room, self._starting = self.room, asyncio.current_task()
        try:
            await room.supervisor.start(room.driver, self)
        except asyncio.CancelledError:
            if self.cause is Cause.NOBODY or (self._starting and self._starting.uncancel()):
                raise
        except PxError:  # which `error` is, too
            pass
        finally:
            self._starting = None
        if self.cause is Cause.SHUTDOWN and self.execution.started_at is None:
            await room.driver.release(self)
            self.leave()  # it waits on, for the next start
        else:
            await self.see_through()

    async def see_through(self) -> None:
        """Look after it until its process, where there is one, has ended or is to end; stop what
        is left of it.
        """
        room, clocks, copied = self.room, self.room.clocks, self.terms.copied
        try:
            exited = room.placement.ending(self.key) if self.child and self.error is None else None
            while exited and not exited.done() and self.cause is Cause.NOBODY:
                left = max(0.0, min(self.deadline, self.settles_at) - clocks.awake())
                # else the look at all runs tells of more
                if copied and (self.followers or self.trouble):
                    left = min(left, DISK_PAUSE_SECONDS if self.trouble else POLL_SECONDS)
                await asyncio.wait(
                    (exited, self.news), timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if exited.done():
                    break
                if copied:
                    await self._copy()
                if clocks.awake() >= self.deadline:
                    seconds = self.execution.plan.timeout_seconds
                    self.want_end(Cause.TIMEOUT, f"did not end within {seconds:g} s (timeout)")
                if clocks.awake() >= self.settles_at:
                    self.want_end(Cause.SETTLED)
            if exited and exited.done():
                self.record = exited.result()
        except KeeperLostError:
            # the next start tells of it
            _log.error("pipe_run_lost", unit=self.unit, execution=self.id)
            self.leave()
            return
        except Exception as error:
            self.broke(error)
        self.wanted = REASONS.get(self.cause, self.wanted)
        await room.supervisor.stop(room.driver, self, self.wanted)

    async def shut_down(self, placement: KeeperClient) -> StopReport:
        """End its whole tree; what survives is named in the row, and does not keep the slot."""
        self.report = await super().shut_down(placement)
        if self.report.survivors and not self.final:
            await self.end_now()
        return self.report

    # -- its output --------------------------------------------------------------------------------

    async def open_output(self) -> Copier:
        """Return what reads its output; of an adopted one it begins anew."""
        if self._copier is None:
            terms, secrets = self.terms, self.launch.secrets if self.launch else {}
            if terms.copied and self.launch is None:
                secrets = await recall_secrets(self.room.shelf, self.execution, self.home)
            self._copier = Copier(
                self.folder,
                terms.parser,
                copied=terms.copied,
                secrets=secrets,
                patterns=terms.patterns,
            )
        return self._copier

    async def _copy(self) -> None:
        copier = await self.open_output()
        try:
            while self.cause is Cause.NOBODY and await asyncio.to_thread(copier.step):
                self._take_in(copier.summary)
                self.tell()
            self.trouble = None
        except OSError as error:
            self.trouble, self.is_short = str(error), True

    def _take_in(self, summary: Summary) -> None:
        used, source = self._paid(summary)
        if used != self.execution.usage:
            self.become(**structs.asdict(used), cost_source=source)
        # Also where nothing more was used: a turn that follows shows that the answer before was not
        # the last one.
        sentence = ceiling_that_ends(summary, used, self.execution.plan)
        if sentence is not None:
            self.want_end(Cause.BUDGET, sentence)
        if not summary.settled:
            self.settles_at = math.inf
        elif self.settles_at == math.inf:
            self.room.supervisor.say("execution_settled", self)
            self.settles_at = self.room.clocks.awake() + self.terms.settle_seconds

    def _paid(self, summary: Summary) -> tuple[Usage, CostSource | None]:
        """Return what was used so far with its cost, and who says what it cost."""
        told = summary.usage
        cost, source = cost_of(told, self.execution.preset, cached_in_input=summary.cached_in_input)
        return structs.replace(told, cost=cost), source

    def look(self, stamp: tuple[tuple[int, int], ...], resumed_at: float) -> None:
        """Take in how much it has written (`measured`), and end it where that is too much, or it
        says nothing.
        """
        now, most = self.room.clocks.boot(), self.room.config.output_file_bytes
        if stamp != self._stamp:
            # that its files are there is no word of it
            if self._stamp or any(written for written, _ in stamp):
                self.heard_at = now
            self._stamp = stamp
            self.tell()
        if self.room.clocks.awake() >= self.deadline:
            self.tell()
        if any(written > most for written, _ in stamp):
            words = f"wrote more than {most} bytes of output (pipes.output_file_bytes)"
            self.want_end(Cause.OUTPUT, words)
        if self.heard_at <= resumed_at and now - resumed_at >= WAKE_SILENCE_SECONDS:
            self.want_end(
                Cause.SILENT,
                f"said nothing for {WAKE_SILENCE_SECONDS:g} s after the machine woke up",
            )

    # -- its end -----------------------------------------------------------------------------------

    async def conclude(self) -> Operation | None:
        """Decide how it ended, and what follows; return what writes all of that down, None where
        that is done.
        """
        it, states = self.execution, self.room.states
        if self.final or it.status.is_final:
            return None
        had_process = self.child is not None or self.cause is Cause.INTERRUPTED
        copier = await self.open_output() if had_process else None
        # Whether it ran, or was about to be spawned; not where another execution of its pipe runs
        # already.
        began = it.started_at is not None and not isinstance(self.error, ConflictError)
        outcome, facts = await asyncio.to_thread(self._close, copier, began=began)
        if outcome.status in {Status.FAILED, Status.TIMED_OUT} and self.definition is not None:
            self.following = self.room.next_try(it, self.definition, outcome)
        self.goes_on = self.following is not None
        change = states.change_by(it, outcome, facts["finished_at"], goes_on=self.goes_on)
        if began and self.child is None:
            states.take(it.pipe_name, last_run_at=it.started_at)
        states.take(it.pipe_name, **change)
        self.final = facts
        also = [PIPE_STATES.merge(it.pipe_name, **change)]
        if self.following is not None:
            also.append(EXECUTIONS.insert(self.following))
        elif it.trigger_event and it.trigger_key and outcome.status is not Status.COMPLETED:
            # Let the event start the pipe again, should it be told once more.
            also.append(ledger_pipes.release_claim(it.pipe_name, it.trigger_event, it.trigger_key))
        return ledger_pipes.finish(self.id, also=together(*also), **facts)

    def _close(self, copier: Copier | None, *, began: bool) -> tuple[Outcome, dict[str, Any]]:
        """Judge it once all that it wrote is taken; return the outcome, and what its row says of
        it. Blocking.
        """
        is_full_now = copier is not None and (
            not _finished(copier) or output.disk_is_full(self.folder)
        )
        is_full = is_full_now or (copier is not None and self.is_short)
        facts = output.texts(self.folder, self.room.config.row_bytes) if copier else {}
        outcome = self._judged(copier.summary if copier else Summary(), facts)
        message, record, started = (
            outcome.error_message,
            self.record,
            self.execution.started_at or 0.0,
        )
        if copier is not None:
            is_garbled = any("\ufffd" in facts[stream.value] for stream in BOTH)
            used, source = self._paid(copier.summary)
            facts |= {
                **structs.asdict(used),
                "lost_bytes": int(is_full),
                "invalid_utf8": is_garbled,
            }
            facts["cost_source"] = source
            warnings = list(map(copier.redact, copier.summary.warnings))
            tells = BY_FORMAT.get(self.terms.parser)
            is_told_at_end = tells is not None and tells.tokens is When.AT_END
            if outcome.error_type in CUT_OFF and is_told_at_end and not used.total_tokens:
                warnings.append("what it used is not known: the agent tells that at its end")
            facts["warnings"] = tuple(warnings)
            message = None if message is None else copier.redact(message)
        # Where it says that it succeeded, its writes may have failed unnoticed: they did if there
        # is no output at all, and they may have if the disk is full to the end.
        has_output = any(facts.get(stream.value) for stream in BOTH)
        failed = outcome.status is Status.FAILED
        lost = outcome.status is Status.COMPLETED and (is_full_now or not has_output)
        if is_full and (failed or lost) and self.cause in {Cause.NOBODY, Cause.SETTLED}:
            message = f"the disk was full while it ran{f': {message}' if message else ''}"
            outcome = Outcome(Status.FAILED, ErrorType.DISK_FULL)
        if self.report.survivors:
            words = (
                "survived the stop: pid "
                f"{', '.join(str(each.pid) for each in self.report.survivors)}"
            )
            message = f"{message}; {words}" if message else words
            _log.error("pipe_survived_stop", unit=self.unit, execution=self.id, detail=words)
        cleanup(self.folder)
        incomplete = began and outcome.error_type in CUT_OFF
        if began and self.execution.output_dir is not None:
            _leave_output(
                Path(self.execution.output_dir),
                message or outcome.status.value,
                incomplete=incomplete,
            )
        now = last = self.room.clocks.moment()
        if record is not None:  # as the keeper saw it
            last = record.ended_at
        elif self.cause is Cause.INTERRUPTED:  # when it last wrote
            last = max(stamp / 1e9 for _, stamp in measured([self])[0])
        now = whole_ms(min(now, max(last, started)))
        facts |= {
            "status": outcome.status,
            "error_type": outcome.error_type,
            "error_message": message and message[:MESSAGE_MAX],
            "finished_at": now,
            "duration_ms": max(0, round((now - started) * 1000)) if began else None,
            "exit_code": record.code if record else None,
            "signal": record.signal if record else None,
            "incomplete": incomplete,
        }
        return outcome, facts

    def _judged(self, summary: Summary, facts: Mapping[str, Any]) -> Outcome:
        record, terms = self.record, self.terms
        if self.child is None and self.cause is Cause.NOBODY:
            return self._not_started()
        verdict = record.verdict if record else None
        # A limit that the keeper enforced is the reason, whatever else was wanted.
        if record and verdict and verdict.reason in LIMITS:
            return Outcome(Status.FAILED, ErrorType.RESOURCE_LIMIT, describe(record, verdict))
        how = (record.code, record.signal) if record else (None, None)
        stdout, stderr = (facts.get(stream.value, "")[-TAIL_CHARS:] for stream in BOTH)
        ended = ExitInfo(self.cause, *how, stdout, stderr, self.detail)
        return judge(
            ended, summary, terms.success, terms.errors, allow_empty=self.execution.plan.allow_empty
        )

    def _not_started(self) -> Outcome:
        error = self.error or PxError("it was not started")
        if isinstance(error, CannotRunError):
            return Outcome(Status.FAILED, error.error_type, error.message)
        if (
            self.launch
            and error.extra.get("stage") == "exec"
            and error.extra.get("errno") in _NO_PROGRAM
        ):
            said = f"cannot start {self.launch.argv[0]}: {error.detail}"
            return Outcome(Status.FAILED, ErrorType.AGENT_NOT_FOUND, said)
        return Outcome(Status.FAILED, ErrorType.UNKNOWN, f"not started: {error.detail}")


def _finished(copier: Copier) -> bool:
    for _ in range(DISK_TRIES):
        with suppress(OSError):
            copier.finish()
            return True
        time.sleep(DISK_PAUSE_SECONDS)
    return False


def _leave_output(folder: Path, why: str, *, incomplete: bool) -> None:
    with suppress(OSError):
        if incomplete:
            folder.mkdir(exist_ok=True)  # it goes just before the row becomes final
            with (folder / "INCOMPLETE").open("x", encoding="utf-8") as file:
                file.write(f"{why}\n")
        else:
            folder.rmdir()


def measured(runs: Sequence[Run]) -> list[tuple[tuple[int, int], ...]]:
    """Return of each run how much it has written and when it last did, of each stream. Blocking."""
    is_full, found = output.disk_is_full(runs[0].folder), []
    for run in runs:
        stamp = [(0, 0), (0, 0)]
        files = output.RAW if run.terms.copied else output.FILES
        for number, stream in enumerate(BOTH):
            with suppress(OSError):
                status = os.stat(f"{run.folder}/{files[stream]}")
                stamp[number] = (status.st_size, status.st_mtime_ns)
        found.append(tuple(stamp))
        if is_full:
            run.trouble, run.is_short = os.strerror(errno.ENOSPC), True
        elif not run.terms.copied:
            run.trouble = None
    return found
