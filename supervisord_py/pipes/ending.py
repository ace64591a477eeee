"""How an execution ended: judged by all that it has left, once nothing of it runs any more. Everything blocks."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from supervisord_py.errors import ConflictError
from supervisord_py.ledger.pipe_executions import ErrorType, Outcome, Status
from supervisord_py.pipes import output
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.outcome import Cause, ExitInfo, SuccessRule, judge
from supervisord_py.pipes.output import BOTH
from supervisord_py.pipes.scheduler import whole_ms
from supervisord_py.pipes.streams import Summary
from supervisord_py.process.lifecycle import describe
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.pipes.output import Copier
    from supervisord_py.pipes.run import Run

DISK_PAUSE_SECONDS, DISK_TRIES = 0.5, 4
"""How patiently the rest of the output is tried against a disk that takes nothing, once the process is gone."""
TAIL_BYTES = 64 * 1024  # so much of each stream is looked at for the reason of a failure
_NO_PROGRAM = frozenset((errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR))
_LIMITS = frozenset((Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.CPU_LIMIT))
_log = structlog.get_logger(__name__)


def close(run: Run, copier: Copier | None, *, began: bool) -> tuple[Outcome, dict[str, Any], float]:
    """Judge it; return the outcome, what its row says of the output, and when it ended. Blocking."""
    outcome, facts = _judged(run, copier)
    if began and run.execution.output_dir is not None:
        _leave_output(run.execution.output_dir, outcome)
    return outcome, facts, _end_of(run, run.room.clocks.moment())


def _judged(run: Run, copier: Copier | None) -> tuple[Outcome, dict[str, Any]]:
    """Judge it by all that it has left, and say what of its output goes into the row. Blocking."""
    if copier is None:
        return _unstarted(run), {}
    lost = not _finished(copier)
    tails = [output.tail(run.folder, stream, TAIL_BYTES) for stream in BOTH]
    ended, rule = _exit_info(run, *tails), run.terms.success
    outcome = run.outcome or judge(
        ended, copier.summary, rule, run.terms.errors, allow_empty=run.execution.plan.allow_empty
    )
    is_full = run.is_short or lost or output.disk_is_full(run.folder)
    message = copier.redact(outcome.error_message)
    if is_full and outcome.status is Status.FAILED and ended.cause in {Cause.NOBODY, Cause.SETTLED}:
        message = f"the disk was full while it ran{f': {message}' if message else ''}"
        outcome = Outcome(Status.FAILED, ErrorType.DISK_FULL)
    if run.report is not None and run.report.survivors:
        words = f"survived the stop: pid {', '.join(str(each.pid) for each in run.report.survivors)}"
        message = f"{message}; {words}" if message else words
        _log.error("pipe_survived_stop", unit=run.unit, execution=run.id, detail=words)
    usage = msgspec.structs.asdict(copier.summary.usage)
    facts = {**run.texts(), **usage, "invalid_utf8": not copier.is_utf8, "lost_bytes": int(is_full)}
    return msgspec.structs.replace(outcome, error_message=message), facts


def _unstarted(run: Run) -> Outcome:
    """Say why it never came to run."""
    if run.outcome is not None:
        return run.outcome
    if run.cause is not Cause.NOBODY:
        ended = ExitInfo(run.cause, detail=run.detail)
        return judge(ended, Summary(), SuccessRule(), allow_empty=False)
    error = run.error
    if isinstance(error, CannotRunError):
        return Outcome(Status.FAILED, error.error_type, error.message)
    detail = error.detail if error else "nobody knows why it was not started"
    if isinstance(error, ConflictError) or run.launch is None:
        return Outcome(Status.FAILED, ErrorType.UNKNOWN, f"not started: {detail}")
    number = error.extra.get("errno") if error else None
    is_program = error is not None and error.extra.get("stage") == "exec" and number in _NO_PROGRAM
    kind = ErrorType.AGENT_NOT_FOUND if is_program else ErrorType.UNKNOWN
    return Outcome(Status.FAILED, kind, f"cannot start {run.launch.argv[0]}: {detail}")


def _exit_info(run: Run, stdout_tail: str, stderr_tail: str) -> ExitInfo:
    record = run.record
    verdict = record.verdict.reason if record and record.verdict else None
    limit = verdict if verdict in _LIMITS else None
    return ExitInfo(
        cause=run.cause if limit is None else Cause.NOBODY,
        code=record.code if record else None,
        signal=record.signal if record else None,
        limit=None if limit is None else limit.value,
        stdout_tail=stdout_tail,
        stderr_tail=stderr_tail,
        detail=describe(record, limit) if record and limit else run.detail,
    )


def _end_of(run: Run, now: float) -> float:
    """Return when it ended: as the keeper saw it, else, if it was cut off, when it last wrote. Blocking."""
    started = run.execution.started_at or 0.0
    if run.record is not None:
        return whole_ms(min(now, max(run.record.ended_at, started)))
    if run.cause is not Cause.INTERRUPTED:
        return now
    times = [stamp / 1e9 for _, stamp in run.measured()]
    return whole_ms(min(now, max(*times, started)))


def _finished(copier: Copier) -> bool:
    """Take the rest of the output; say whether the disk took it. Blocking."""
    for _ in range(DISK_TRIES):
        with suppress(OSError):
            copier.finish()
            return True
        time.sleep(DISK_PAUSE_SECONDS)
    return False


def is_incomplete(outcome: Outcome) -> bool:
    """Say whether what it wrote may be half-done: it was cut off, by us or by a crash."""
    if outcome.status in {Status.TIMED_OUT, Status.CANCELLED}:
        return True
    return outcome.error_type in {
        ErrorType.CRASH,
        ErrorType.INTERRUPTED,
        ErrorType.SHUTDOWN,
        ErrorType.BUDGET_EXCEEDED,
        ErrorType.RESOURCE_LIMIT,
        ErrorType.DISK_FULL,
    }


def _leave_output(output_dir: str, outcome: Outcome) -> None:
    """Remove an empty output folder; mark that of an execution that was cut off: what lies there may be half-done."""
    with suppress(OSError):
        if is_incomplete(outcome):
            Path(output_dir).mkdir(exist_ok=True)  # it goes just before the row becomes final
            with Path(output_dir, "INCOMPLETE").open("x", encoding="utf-8") as file:
                file.write(f"{outcome.error_message or outcome.status.value}\n")
        else:
            Path(output_dir).rmdir()
