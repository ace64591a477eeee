"""How an execution ended: judged by all that it has left, once nothing of it runs any more; and what follows."""

from __future__ import annotations

import asyncio
import errno
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import structs

from supervisord_py.errors import ConflictError
from supervisord_py.ledger.pipe_executions import EXECUTIONS, ErrorType, Outcome, Status, finish
from supervisord_py.ledger.pipe_state import PIPE_STATES, release_claim
from supervisord_py.ledger.table import together
from supervisord_py.pipes import output
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.intake import next_try
from supervisord_py.pipes.launch import cleanup
from supervisord_py.pipes.outcome import Cause, ExitInfo, SuccessRule, judge
from supervisord_py.pipes.output import DISK_PAUSE_SECONDS
from supervisord_py.pipes.scheduler import whole_ms
from supervisord_py.pipes.streams import Summary
from supervisord_py.process.lifecycle import describe
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.ledger.table import Operation
    from supervisord_py.pipes.output import Copier
    from supervisord_py.pipes.run import Run

DISK_TRIES = 4  # how often the rest of the output is tried against a disk that takes nothing, once the process is gone
TAIL_CHARS = 64 * 1024  # so much of each stream is looked at for the reason of a failure
_NO_PROGRAM = frozenset((errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR))
_LIMITS = frozenset((Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.CPU_LIMIT))
CUT_OFF = frozenset((
    ErrorType.TIMEOUT, ErrorType.CANCELLED, ErrorType.CRASH, ErrorType.INTERRUPTED, ErrorType.SHUTDOWN,
    ErrorType.BUDGET_EXCEEDED, ErrorType.RESOURCE_LIMIT, ErrorType.DISK_FULL,
))  # fmt: skip
"""After these, what it wrote may be half-done."""
_log = structlog.get_logger(__name__)


async def conclude(run: Run) -> Operation | None:
    """Decide how a run ended, and what follows; return what writes all of that down, None where that is done.

    The next try's row, the claim on the event that is given back and the pipe's counters are of one transaction with
    the end: whenever the control plane ends, all of it is there or none.
    """
    it, states = run.execution, run.room.states
    if run.final or it.status.is_final:
        return None
    had_process = run.child is not None or run.cause is Cause.INTERRUPTED
    copier = await run.open_output() if had_process else None
    # Whether it ran, or was about to be spawned; not where another execution of its pipe runs already.
    began = it.started_at is not None and not isinstance(run.error, ConflictError)
    outcome, facts = await asyncio.to_thread(_close, run, copier, began=began)
    run.outcome = outcome
    if outcome.status in {Status.FAILED, Status.TIMED_OUT} and run.definition is not None:
        run.following = next_try(run, run.definition, outcome)
    run.goes_on = run.following is not None
    change = states.change_by(it, outcome, facts["finished_at"], goes_on=run.goes_on)
    if began and run.child is None:
        states.take(it.pipe_name, last_run_at=it.started_at)
    states.take(it.pipe_name, **change)
    run.final = facts
    also = [PIPE_STATES.merge(it.pipe_name, **change)]
    if run.following is not None:
        also.append(EXECUTIONS.insert(run.following[0]))
    elif it.trigger_event and it.trigger_key and outcome.status is not Status.COMPLETED:
        # Let the event start the pipe again, should it be told once more.
        also.append(release_claim(it.pipe_name, it.trigger_event, it.trigger_key))
    return finish(run.id, also=together(*also), **facts)


def _close(run: Run, copier: Copier | None, *, began: bool) -> tuple[Outcome, dict[str, Any]]:
    """Judge it; return the outcome, and what its row says of it and of the output. Blocking."""
    outcome, facts = (_unstarted(run), {}) if copier is None else _judged(run, copier)
    cleanup(run.folder)
    incomplete = began and outcome.error_type in CUT_OFF
    if began and run.execution.output_dir is not None:
        _leave_output(Path(run.execution.output_dir), outcome, incomplete=incomplete)
    now, started, record = run.room.clocks.moment(), run.execution.started_at or 0.0, run.record
    if record is not None:  # as the keeper saw it
        now = whole_ms(min(now, max(record.ended_at, started)))
    elif run.cause is Cause.INTERRUPTED:  # when it last wrote
        now = whole_ms(min(now, max(*(stamp / 1e9 for _, stamp in run.measured()), started)))
    facts |= {
        "status": outcome.status,
        "error_type": outcome.error_type,
        "error_message": outcome.error_message,
        "finished_at": now,
        "duration_ms": max(0, round((now - started) * 1000)) if began else None,
        "exit_code": record.code if record else None,
        "signal": record.signal if record else None,
        "incomplete": incomplete,
    }
    return outcome, facts


def _judged(run: Run, copier: Copier) -> tuple[Outcome, dict[str, Any]]:
    """Judge one that had a process, once all that it wrote is taken."""
    is_full = not _finished(copier) or run.is_short or output.disk_is_full(run.folder)
    record = run.record
    verdict = record.verdict.reason if record and record.verdict else None
    limit = verdict if verdict in _LIMITS else None
    facts = output.texts(run.folder, run.room.config.row_bytes)
    ended = ExitInfo(
        cause=run.cause if limit is None else Cause.NOBODY,
        code=record.code if record else None,
        signal=record.signal if record else None,
        limit=None if limit is None else limit.value,
        stdout_tail=facts["stdout"][-TAIL_CHARS:],
        stderr_tail=facts["stderr"][-TAIL_CHARS:],
        detail=describe(record, limit) if record and limit else run.detail,
    )
    terms, allow_empty = run.terms, run.execution.plan.allow_empty
    outcome = run.outcome or judge(ended, copier.summary, terms.success, terms.errors, allow_empty=allow_empty)
    message = copier.redact(outcome.error_message)
    if is_full and outcome.status is Status.FAILED and ended.cause in {Cause.NOBODY, Cause.SETTLED}:
        message = f"the disk was full while it ran{f': {message}' if message else ''}"
        outcome = Outcome(Status.FAILED, ErrorType.DISK_FULL)
    if run.report is not None and run.report.survivors:
        words = f"survived the stop: pid {', '.join(str(each.pid) for each in run.report.survivors)}"
        message = f"{message}; {words}" if message else words
        _log.error("pipe_survived_stop", unit=run.unit, execution=run.id, detail=words)
    facts |= structs.asdict(copier.summary.usage) | {"invalid_utf8": not copier.is_utf8, "lost_bytes": int(is_full)}
    return structs.replace(outcome, error_message=message), facts


def _finished(copier: Copier) -> bool:
    for _ in range(DISK_TRIES):
        with suppress(OSError):
            copier.finish()
            return True
        time.sleep(DISK_PAUSE_SECONDS)
    return False


def _unstarted(run: Run) -> Outcome:
    if run.outcome is not None:
        return run.outcome
    if run.cause is not Cause.NOBODY:
        return judge(ExitInfo(run.cause, detail=run.detail), Summary(), SuccessRule(), allow_empty=False)
    error = run.error
    if isinstance(error, CannotRunError):
        return Outcome(Status.FAILED, error.error_type, error.message)
    detail = error.detail if error else "nobody knows why it was not started"
    if isinstance(error, ConflictError) or run.launch is None:
        return Outcome(Status.FAILED, ErrorType.UNKNOWN, f"not started: {detail}")
    is_program = error and error.extra.get("stage") == "exec" and error.extra.get("errno") in _NO_PROGRAM
    kind = ErrorType.AGENT_NOT_FOUND if is_program else ErrorType.UNKNOWN
    return Outcome(Status.FAILED, kind, f"cannot start {run.launch.argv[0]}: {detail}")


def _leave_output(folder: Path, outcome: Outcome, *, incomplete: bool) -> None:
    """Mark what it may have left half-done; remove an empty folder."""
    with suppress(OSError):
        if incomplete:
            folder.mkdir(exist_ok=True)  # it goes just before the row becomes final
            with (folder / "INCOMPLETE").open("x", encoding="utf-8") as file:
                file.write(f"{outcome.error_message or outcome.status.value}\n")
        else:
            folder.rmdir()
