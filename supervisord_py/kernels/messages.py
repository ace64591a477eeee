"""What users read of kernels: how one ended, why one did not start, why a call got none. Pure."""

from __future__ import annotations

import json
import shlex
import signal as signals
from typing import TYPE_CHECKING, Any

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
from supervisord_py.kernels.cell import CellError
from supervisord_py.kernels.session_set import WaitsFor, WhyRefused
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason

if TYPE_CHECKING:
    from supervisord_py.config.settings import KernelsSettings
    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.session_set import HardFailure

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
    said = launcher_said(end.stderr_tail)
    facts = {**end.facts(), "interpreter": launch.interpreter, "kernelspec": launch.kernelspec}
    if str(said.get("error")) in _KINDS:
        return _as_it_said(launch, said, facts)
    words = last_lines(end.stderr_tail, _TAIL_LINES_SHOWN).strip()[:300]
    return StartFailedError(
        f"{launch.unit} {how_it_ended(end)} before it was ready: {words or 'it wrote nothing to stderr'}",
        hint=f"see `pxctl logs {launch.unit}`",
        unit=launch.unit,
        **facts,
    )


def not_ready(launch: Launch, seconds: float) -> PxError:
    """Return the error of a start that lives but did not answer in time."""
    return ReadinessTimeoutError(
        f"{launch.unit} was not ready within {seconds:.1f} s: it does not answer",
        hint=f"give the call more time (`--timeout`), or see `pxctl logs {launch.unit}`",
        unit=launch.unit,
        reason=Reason.READINESS_TIMEOUT.value,
        interpreter=launch.interpreter,
        kernelspec=launch.kernelspec,
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
    return StartFailedError(f"{launch.unit} was not started: {what}", hint=hint, unit=launch.unit, **facts)


# -- why a call got none -----------------------------------------------------------------------------------------------

_EVIDENCE = frozenset({"reason", "code", "signal", "stage", "errno", "verdict", "stderr_tail", "limit", "log_tail"})
RETRY_SECONDS = 1  # when asking again makes sense while all is busy: nobody can know better
_REFUSALS: dict[WhyRefused, tuple[type[PxError], str, str]] = {
    WhyRefused.QUEUE_FULL: (
        OverloadedError,
        "{unit} has {limits.queue_max} calls in line already.",
        "Ask again later, use another session (`--kernel NAME`), or raise kernels.queue_max.",
    ),
    WhyRefused.STOPPED: (CancelledRunError, "{unit} was stopped while the call waited.", "Ask again."),
    WhyRefused.CLOSING: (ShuttingDownError, "The daemon is stopping.", "Ask again once it runs."),
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
}


def refusal(why: WhyRefused, unit: str, limits: KernelsSettings) -> PxError:
    kind, text, hint = _REFUSALS[why]
    more = {"retry_after_seconds": RETRY_SECONDS} if kind is OverloadedError else {}
    return kind(text.format(unit=unit, limits=limits), hint=hint, unit=unit, **more)


def own_session(unit: str) -> PxError:
    return ConflictError(
        f"The call comes from a cell that occupies {unit} itself: neither would ever end.",
        hint="Name another session for calls from inside a cell (`pxctl exec --kernel NAME`, or --per-call).",
        unit=unit,
    )


def waited_in_vain(unit: str, waits_for: WaitsFor | None, limits: KernelsSettings) -> PxError:
    why, hint = _WAITED[waits_for or WaitsFor.TURN]
    return TimedOutError(
        f"{why.format(unit=unit, limits=limits)} when the call's time was over; nothing was run.",
        hint=hint,
        unit=unit,
        reason="timeout",
        waited_for=waits_for,
        retry_after_seconds=RETRY_SECONDS,
    )


def hard_failure(failure: HardFailure, unit: str) -> PxError:
    """Return the error of a call to a session whose kernel died again and again, with evidence of the last death."""
    last = failure.problem
    return StartFailedError(
        f"The kernel of {unit} died {failure.deaths} times with no cell that succeeded in between; it is not started "
        "again by itself." + (f" Last: {last['detail']}" if last.get("detail") else ""),
        hint=f"See `pxctl logs {unit}`; then `pxctl kernel restart {unit.partition(':')[2]}`, or `pxctl exec --reset`.",
        unit=unit,
        failures=failure.deaths,
        **{key: value for key, value in last.items() if key in _EVIDENCE},
    )


RECYCLED = "The kernel was over its soft memory limit and was replaced after the call: variables are gone."
