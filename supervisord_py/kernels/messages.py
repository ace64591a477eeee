"""What users read of kernels: how one ended, why one did not start, why a call got none, where a call ended. Pure."""

from __future__ import annotations

import json
import shlex
import signal as signals
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from supervisord_py.errors import (
    CancelledRunError,
    ConflictError,
    OverloadedError,
    PxError,
    ReadinessTimeoutError,
    ShuttingDownError,
    StartFailedError,
    TimedOutError,
)
from supervisord_py.kernels.cell import CellError, CellStatus, Variables
from supervisord_py.kernels.session_set import FailureKind, Refusal, WaitsFor
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.cell import Step
    from supervisord_py.kernels.config import SessionLimits
    from supervisord_py.kernels.session_set import Failure, Refuse

# -- how a kernel ended ------------------------------------------------------------------------------------------------

TAIL_LINES = 12
_FATAL = "Fatal Python error"  # how faulthandler begins
_MIB = 1024 * 1024
_WHY = {
    Reason.STOPPED: "it was stopped on request",
    Reason.EVICTED_LRU: "room was needed for another session",
    Reason.EVICTED_TTL: "it was not used for its idle time",
    Reason.REPLACED: "it was replaced on request",
    Reason.TIMEOUT: "the call's time was over and the cell did not yield to an interrupt",
    Reason.CANCELLED: "the call was cancelled and the cell did not yield to an interrupt",
    Reason.SHUTDOWN: "the daemon stopped",
    Reason.INTERRUPTED: "the daemon was cut off",
}

AT_ITS_SERVER = "ended at its server"  # of a kernel behind a gateway nobody tells code or signal
_LIMITS = frozenset({Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.CPU_LIMIT})


def end_in_row(reason: str | None, code: int | None, signal: int | None, ended_at: float = 0.0) -> End | None:
    """Return the end of a kernel that a row tells; None where it tells none."""
    if reason is None or reason not in set(Reason):
        return None
    if code is None and signal is None:
        return End(Reason(reason))
    record = ExitRecord("", "", Identity(0, 0, ""), 0.0, ended_at, code, signal, 0.0, 0.0, 0, 0, 0)
    return End(Reason(reason), record)


def how_it_ended(end: End) -> str:
    """Say it as a verb phrase: `exited with code 3`, `was killed by SIGSEGV`, `was ended: it was stopped`."""
    if end.reason in {Reason.MEMORY_LIMIT, Reason.OOM_KILL}:
        return _memory(end)
    if end.reason is Reason.CPU_LIMIT:
        return "was killed: its limit of CPU seconds was reached"
    if end.reason in _WHY:
        return f"was ended: {_WHY[end.reason]}"
    if end.signal is not None:
        unknown = end.signal == signals.SIGKILL
        return f"was killed by {signal_name(end.signal)}" + (
            " (not sent by pxd; possibly the kernel's OOM killer)" if unknown else ""
        )
    return f"exited with code {end.code}" if end.code is not None else AT_ITS_SERVER


def signal_name(number: int) -> str:
    """Return SIGSEGV for 11."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def death_in_cell(end: End) -> CellError:
    """Return the error of the cell in which a kernel died."""
    text = f"The kernel {how_it_ended(end)} while the cell ran. The cell is not run again; all variables are lost."
    if end.stderr_tail:
        text += "\nLast words of the kernel:\n" + last_lines(end.stderr_tail)
    return CellError("ResourceLimitExceeded" if end.reason in _LIMITS else "KernelDied", text)


def last_lines(text: str, count: int = TAIL_LINES) -> str:
    """Return the last lines of a text; of a crash report the first ones, where the crash is."""
    lines = text.rstrip().splitlines()
    fatal = next((number for number, line in enumerate(lines) if line.startswith(_FATAL)), None)
    return "\n".join(lines[-count:] if fatal is None else lines[fatal : fatal + count])


def _memory(end: End) -> str:
    verdict = end.record.verdict if end.record else None
    figures = ""
    if verdict is not None and verdict.limit_bytes is not None:
        held = f"{verdict.rss_bytes // _MIB} MiB resident, " if verdict.rss_bytes is not None else ""
        figures = f" ({held}limit {verdict.limit_bytes // _MIB} MiB)"
    if end.reason is Reason.OOM_KILL:
        return f"was killed by the kernel: out of memory{figures}"
    return f"was killed: it was over its memory limit{figures}"


# -- why it did not come up --------------------------------------------------------------------------------------------

SAID = "px-launch: "
_TAIL_LINES_SHOWN = 1


def early_exit(launch: Launch, end: End) -> PxError:
    """Return the error of a start whose process ended before it answered."""
    said = launcher_said(end.stderr_tail)
    facts = {**end.facts(), "interpreter": launch.interpreter, "kernelspec": launch.kernelspec}
    if str(said.get("error")) in _KINDS:
        return _as_it_said(launch, said, facts)
    words = last_lines(end.stderr_tail, _TAIL_LINES_SHOWN).strip()[:300]
    return StartFailedError(
        f"{_unit(launch)} {how_it_ended(end)} before it was ready: {words or 'it wrote nothing to stderr'}",
        hint=f"see `pxctl logs {_unit(launch)}`",
        unit=_unit(launch),
        **facts,
    )


def not_ready(launch: Launch, seconds: float, seen: str) -> PxError:
    """Return the error of a start that lives but did not answer in time; `seen`: what was heard of it, as a clause."""
    return ReadinessTimeoutError(
        f"{_unit(launch)} was not ready within {seconds:.1f} s: {seen}",
        hint=f"give the call more time (`--timeout`), or see `pxctl logs {_unit(launch)}`",
        unit=_unit(launch),
        reason=Reason.READINESS_TIMEOUT.value,
        interpreter=launch.interpreter,
        kernelspec=launch.kernelspec,
    )


def no_place(launch: Launch, error: OSError) -> PxError:
    """Return the error of a start whose run folder could not be made."""
    return StartFailedError(
        f"{_unit(launch)} was not started: its connection file cannot be written: {error}",
        hint="see `pxctl doctor`",
        unit=_unit(launch),
        reason=Reason.SPAWN_FAILED.value,
        stage="connection_file",
        errno=error.errno,
    )


def launcher_said(tail: str) -> dict[str, Any]:
    """Return the last word of our launcher in the end of a kernel's stderr; {} where it said nothing."""
    for line in reversed(tail.splitlines()):
        if line.startswith(SAID):
            try:
                said = json.loads(line.removeprefix(SAID))
            except ValueError:
                return {}
            return said if isinstance(said, dict) else {}
    return {}


def _unit(launch: Launch) -> str:
    return f"kernel:{launch.session_id}"


_PIP = "run `{python} -m pip install ipykernel`"
_KINDS = {
    "ipykernel": ("{interpreter} (Python {version}) cannot import ipykernel: {detail}", _PIP),
    "overlay": ("the overlay {path} does not serve: {detail}", _PIP + ", or remove {path} to have it built anew"),
    "old_python": ("{interpreter}: {detail}", "name another interpreter: `pxctl kernel start --python PATH`"),
    "usage": ("the launcher refused its options: {detail}", "daemon and launcher differ: `pxctl daemon restart`"),
}
"""What the launcher may say: the sentence and the hint."""


def _as_it_said(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    told: dict[str, Any] = dict.fromkeys(("version", "detail", "path")) | said
    told |= {"interpreter": launch.interpreter, "python": shlex.quote(str(launch.interpreter))}
    what, hint = (text.format(**told) for text in _KINDS[str(said["error"])])
    return StartFailedError(f"{_unit(launch)} was not started: {what}", hint=hint, unit=_unit(launch), **facts)


# -- why a call got none -----------------------------------------------------------------------------------------------

_EVIDENCE = frozenset({"reason", "code", "signal", "stage", "errno", "verdict", "stderr_tail", "limit", "log_tail"})
RETRY_SECONDS = 1  # when asking again makes sense while all is busy: nobody can know better


_REFUSALS: dict[Refusal, tuple[type[PxError], str, str]] = {
    Refusal.QUEUE_FULL: (
        OverloadedError,
        "{unit} has {limits.queue_max} calls in line already.",
        "Ask again later, use another session (`--kernel NAME`), or raise kernels.queue_max.",
    ),
    Refusal.OWN_SESSION: (
        ConflictError,
        "The call comes from a cell that occupies {unit} itself: neither would ever end.",
        "Name another session for calls from inside a cell (`pxctl exec --kernel NAME`, or --per-call).",
    ),
    Refusal.STOPPED: (CancelledRunError, "{unit} was stopped while the call waited.", "Ask again."),
    Refusal.CLOSING: (ShuttingDownError, "The daemon is stopping.", "Ask again once it runs."),
}
_WAITED = {
    WaitsFor.START: (
        "The kernel of {unit} was still starting",
        "Give more time (`--timeout`), or start it first (`pxctl kernel start`).",
    ),
    WaitsFor.STOP: ("The last kernel of {unit} was still on its way out", "Ask again: it may be gone by then."),
    WaitsFor.PLACE: (
        "All {limits.max_sessions} places for kernels were taken by busy ones, and {unit} had none",
        "Stop one (`pxctl kernel stop ID`), or raise kernels.max_sessions.",
    ),
    WaitsFor.TURN: (
        "Other calls of {unit} came first, and were not over",
        "Give more time (`--timeout`), or use another session (`--kernel NAME`).",
    ),
    None: ("The call to {unit} waited", "Give more time (`--timeout`)."),
}


def refusal_error(refuse: Refuse, limits: SessionLimits, unit: str) -> PxError:
    """Return the error of a call that gets no kernel."""
    if refuse.refusal is Refusal.HARD_FAILURE:
        return _hard_failure(refuse.failure, unit)
    if refuse.refusal is Refusal.DEADLINE:
        why, hint = _WAITED[refuse.waits_for]
        return TimedOutError(
            f"{why.format(unit=unit, limits=limits)} when the call's time was over; nothing was run.",
            hint=hint,
            unit=unit,
            reason="timeout",
            waited_for=refuse.waits_for,
            retry_after_seconds=RETRY_SECONDS,
        )
    kind, text, hint = _REFUSALS[refuse.refusal]
    more = {"retry_after_seconds": RETRY_SECONDS} if kind is OverloadedError else {}
    return kind(text.format(unit=unit, limits=limits), hint=hint, unit=unit, **more)


def _hard_failure(failure: Failure | None, unit: str) -> PxError:
    assert failure is not None  # the set always tells which failure stands
    last = failure.problem or {}
    if failure.kind is FailureKind.DEATHS:
        what = f"The kernel of {unit} died {failure.count} times with no cell that succeeded in between"
    else:
        what = f"The kernel of {unit} failed to start {failure.count} times in a row"
    return StartFailedError(
        f"{what}; it is not started again by itself." + (f" Last: {last['detail']}" if last.get("detail") else ""),
        hint=f"See `pxctl logs {unit}`; then `pxctl kernel restart {unit.partition(':')[2]}`, or `pxctl exec --reset`.",
        unit=unit,
        failures=failure.count,
        **{key: value for key, value in last.items() if key in _EVIDENCE},
    )


# -- where a call ended ------------------------------------------------------------------------------------------------

INPUT_FAILURE = (
    "The cell asked for input, and nobody is there to type it. Put the value into the code, or read it from a file or "
    "an environment variable."
)
RECYCLED = "The kernel was over its soft memory limit and was replaced after the call: variables are gone."
RESTARTED = "The kernel had died and was started again: variables of earlier calls are gone."
_OWN = " The session was this call's own: its variables are gone with it."


class Stopped(Struct, frozen=True):
    """Where a call ended early: the cell, and how many there are."""

    index: int  # counts from 0
    count: int
    title: str | None = None
    is_own: bool = False  # the session is the call's own: its variables end with it
    is_stateless: bool = False  # shell cells: there are no variables, so nothing is said of them

    def __str__(self) -> str:
        number = "The cell" if self.count == 1 else f"Cell {self.index + 1} of {self.count}"
        return f"{number} ({' '.join(self.title.split())})" if self.title else number

    @property
    def left_out(self) -> str:
        """Say which cells were not run, as a sentence; empty when none."""
        first, last = self.index + 2, self.count
        if first > last:
            return ""
        return f" Cell {last} was not run." if first == last else f" Cells {first} to {last} were not run."


def failed(where: Stopped, error_name: str | None, variables: Variables = Variables.KEPT) -> str:
    """Return the sentence of a call whose cell raised something."""
    what = f"{where} failed ({error_name})." if error_name else f"{where} failed."
    if variables is Variables.LOST:
        return what + where.left_out + " The kernel is gone: all variables are lost."
    if where.is_own:
        return what + where.left_out + _OWN
    before = {0: "", 1: " The cell before it succeeded; what it set is kept."}.get(
        where.index, f" The {where.index} cells before it succeeded; what they set is kept."
    )
    repair = "" if where.count == 1 else f" Repair cell {where.index + 1} and send from there on."
    return what + where.left_out + ("" if where.is_stateless else before) + repair


def input_failed(where: Stopped) -> str:
    """Return the sentence of a call whose cell asked for input."""
    return f"{failed(where, 'StdinNotImplementedError')} {INPUT_FAILURE}"


def cut_off(
    where: Stopped, status: CellStatus, after_seconds: float, variables: Variables, steps: Sequence[Step] = ()
) -> str:
    """Return the sentence of a call that its time (TIMED_OUT) or a cancel ended, `after_seconds` since its arrival."""
    why = "ran out of time" if status is CellStatus.TIMED_OUT else "was cancelled"
    by = f", by {steps[-1].action}" if steps else ""
    if where.is_stateless:
        return f"{where} {why}: ended after {_seconds(after_seconds)}{by}.{where.left_out}"
    if variables is Variables.KEPT and where.is_own:
        return f"{where} {why}: interrupted after {_seconds(after_seconds)}{by}.{where.left_out}{_OWN}"
    if variables is Variables.KEPT:
        how = f"interrupted after {_seconds(after_seconds)}{by}; variables are kept."
    else:
        how = f"the kernel was killed after {_seconds(after_seconds)}{by}; all variables are lost."
    return f"{where} {why}: {how}{where.left_out}"


def waited_in_vain(timeout_seconds: float, doing: str) -> str:
    """Return the sentence of a call whose time was over before its first cell; `doing`: what went on meanwhile."""
    return f"The call's {_seconds(timeout_seconds)} were over while {doing}; no cell was run."


def died(where: Stopped, how: str) -> str:
    """Return the sentence of a call whose kernel died under it; `how`: as `by signal 11 (SIGSEGV)`."""
    return (
        f"{where} took its kernel down: the process ended {how}. All variables are lost; the cell is not run again."
        f"{where.left_out}"
    )


def left_by_user(where: Stopped) -> str:
    """Return the sentence of a call whose cell called exit()."""
    return (
        f"{where} ended the session with exit(). Variables are gone; the next call starts a new kernel.{where.left_out}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}".rstrip("0").rstrip(".") + " s"
