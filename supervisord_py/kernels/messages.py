"""What users read of kernels: how one ended, why one did not start, why a call got none, how a
cell ended. Pure.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from supervisord_py import errors
from supervisord_py.config.settings import KernelsSettings
from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import Launch, Reply
from supervisord_py.kernels.session import CellError, CellStatus, Step, Variables
from supervisord_py.kernels.session_set import WhyRefused
from supervisord_py.process.instance import End, Phase, signal_name
from supervisord_py.process.model import Reason

# -- how a kernel ended ----------------------------------------------------------------------------

TAIL_LINES = 12
_FATAL = "Fatal Python error"  # how faulthandler begins
_WANTED = {
    Reason.STOPPED: "it was stopped on request",
    Reason.EVICTED_LRU: "room was needed for another session",
    Reason.EVICTED_TTL: "it was not used for its idle time",
    Reason.REPLACED: "it was replaced on request",
    Reason.WATCHDOG: "it did not answer while a call waited for it",
    Reason.TIMEOUT: "the call's time was over and the cell did not yield to an interrupt",
    Reason.CANCELLED: "the call was cancelled and the cell did not yield to an interrupt",
    Reason.SHUTDOWN: "the daemon stopped",
}
"""Ends that somebody wanted: no fault of the cell."""
_LIMITS = {
    Reason.MEMORY_LIMIT: "was killed: it was over its memory limit",
    Reason.OOM_KILL: "was killed by the kernel: out of memory",
    Reason.CPU_LIMIT: "was killed: its limit of CPU seconds was reached",
}


def how_it_ended(end: End) -> str:
    """Say it as a verb phrase: `exited with code 3`, `was killed by SIGSEGV`, `was ended: it was
    stopped`.
    """
    if end.reason is Reason.MEMORY_LIMIT and (end.record is None or end.record.verdict is None):
        return (
            "was replaced after a call: it was over its soft memory limit (kernels.soft_memory_mb)"
        )
    if end.reason in _LIMITS:
        verdict = end.record.verdict if end.record else None
        limit = verdict.limit_bytes if verdict else None
        return _LIMITS[end.reason] + ("" if limit is None else f" (limit {limit >> 20} MiB)")
    if end.reason in _WANTED or end.reason is Reason.INTERRUPTED:
        return f"was ended: {_WANTED.get(end.reason, 'the daemon was cut off')}"
    if end.signal is not None:
        by_whom = (
            " (not sent by pxd; possibly the kernel's OOM killer)"
            if end.signal == signals.SIGKILL
            else ""
        )
        return f"was killed by {signal_name(end.signal)}{by_whom}"
    # Of a kernel behind a gateway nobody tells code or signal.
    return f"exited with code {end.code}" if end.code is not None else "ended at its server"


def last_lines(text: str, count: int = TAIL_LINES) -> str:
    """Return the last lines of a text; of a crash report the first ones, where the crash is."""
    lines = text.rstrip().splitlines()
    fatal = next((number for number, line in enumerate(lines) if line.startswith(_FATAL)), None)
    return "\n".join(lines[-count:] if fatal is None else lines[fatal : fatal + count])


# -- why it did not come up ------------------------------------------------------------------------


def early_exit(launch: Launch, end: End) -> PxError:
    """Return the error of a start that ended; what our launcher has said of it in its last word
    comes first.
    """
    facts = {
        **end.facts(),
        "unit": launch.unit,
        "interpreter": launch.interpreter,
        "kernelspec": launch.kernelspec,
    }
    last_word = _last_word_of_launcher(end.stderr_tail)
    if last_word is not None:
        text, hint = f"was not started: {last_word.detail}", last_word.hint
    else:
        words = last_lines(end.stderr_tail, 1).strip()[:300] or "it wrote nothing to stderr"
        text, hint = (
            f"{how_it_ended(end)} before it was ready: {words}",
            f"see `pxctl logs {launch.unit}`",
        )
    return errors.StartFailedError(f"{launch.unit} {text}", hint=hint, **facts)


class LauncherWord(Struct, frozen=True):
    """What our launcher says of a start that it gives up."""

    detail: str
    hint: str


def _last_word_of_launcher(stderr_tail: str) -> LauncherWord | None:
    """Return the launcher's last word; None where there is none, or not all of it: the tail may
    be cut off.
    """
    _, mark, rest = stderr_tail.rpartition("px-launch: ")
    if not mark:
        return None
    line, _, _ = rest.partition("\n")
    try:
        return msgspec.json.decode(line, type=LauncherWord)
    except msgspec.MsgspecError:
        return None


def not_ready(launch: Launch, seconds: float) -> PxError:
    return errors.ReadinessTimeoutError(
        f"{launch.unit} was not ready within {seconds:.1f} s: it does not answer",
        hint=f"give the call more time (`--timeout`), or see `pxctl logs {launch.unit}`",
        unit=launch.unit,
        reason=Reason.READINESS_TIMEOUT.value,
        interpreter=launch.interpreter,
        kernelspec=launch.kernelspec,
    )


# -- why a call got none ---------------------------------------------------------------------------

RETRY_SECONDS = 1  # when asking again makes sense while all is busy: nobody can know better
_WAITED = {
    Phase.STARTING: "The kernel of {unit} was still starting",
    Phase.STOPPING: "The last kernel of {unit} was still on its way out",
    Phase.COLD: "All {limits.max_sessions} places for kernels were taken by busy ones "
    "(kernels.max_sessions)",
    Phase.READY: "Other calls of {unit} came first, and were not over",
}
RECYCLED = (
    "The kernel was over its soft memory limit (kernels.soft_memory_mb) and was replaced after the "
    "call: "
    "variables are gone."
)


def new_folder(cwd: str) -> str:
    return (
        f"{cwd} is another folder than before (that was deleted, renamed or replaced): the kernel "
        "went into the new "
        "one. Files that it has open are in the old one."
    )


def refusal(why: WhyRefused, unit: str, limits: KernelsSettings) -> PxError:
    if why is WhyRefused.STOPPED:
        return errors.CancelledRunError(
            f"{unit} was stopped while the call waited.", hint="Ask again.", unit=unit
        )
    if why is WhyRefused.CLOSING:
        return errors.ShuttingDownError(
            "The daemon is stopping.", hint="Ask again once it runs.", unit=unit
        )
    text = f"{unit} has {limits.queue_max} calls in line already."
    hint = "Ask again later, use another session (`--kernel NAME`), or raise kernels.queue_max."
    return errors.OverloadedError(text, hint=hint, unit=unit, retry_after_seconds=RETRY_SECONDS)


def own_session(unit: str) -> PxError:
    text = f"The call comes from a cell that occupies {unit} itself: neither would ever end."
    hint = (
        "Name another session for calls from inside a cell (`pxctl exec --kernel NAME`, or "
        "--per-call)."
    )
    return errors.ConflictError(text, hint=hint, unit=unit)


def waited_in_vain(unit: str, waits_for: Phase | None, limits: KernelsSettings) -> PxError:
    why = _WAITED[waits_for or Phase.READY].format(unit=unit, limits=limits)
    hint = (
        "Give more time (`--timeout`), use another session (`--kernel NAME`), or stop one (`pxctl "
        "kernel stop`)."
    )
    if waits_for is Phase.STARTING:
        hint = (
            "Give more time (`--timeout`); where it hangs in a module or a startup file, fix that "
            "and run the cell "
            "again, or replace the kernel: `pxctl exec --reset`."
        )
    return errors.TimedOutError(
        f"{why} when the call's time was over; nothing was run.",
        hint=hint,
        unit=unit,
        reason="timeout",
        waited_for=waits_for,
        retry_after_seconds=RETRY_SECONDS,
    )


def hard_failure(deaths: int, last: Mapping[str, object], unit: str) -> PxError:
    told = f" Last: {last['detail']}" if last.get("detail") else ""
    return errors.StartFailedError(
        f"The kernel of {unit} died {deaths} times with no cell that succeeded in between; "
        f"it is not started again by itself.{told}",
        hint=f"See `pxctl logs {unit}`; then `pxctl kernel restart {unit.partition(':')[2]}`, or "
        "`pxctl exec --reset`.",
        unit=unit,
        failures=deaths,
        **{key: value for key, value in last.items() if key != "detail"},
    )


# -- what the end of a cell means ------------------------------------------------------------------


class CellOutcome(Struct, frozen=True):
    """How a cell ended; from `judge` on, what that means beside its output."""

    reply: Reply | None = None  # the kernel's word; None when it gave none
    gone: PxError | None = None  # what said that the kernel is gone
    cut: CellStatus | None = None  # TIMED_OUT or CANCELLED when it was made to end
    variables: Variables = Variables.KEPT  # what became of the session's state
    steps: tuple[Step, ...] = ()  # rungs that were taken
    is_stateless: bool = False  # there are no variables: a shell cell
    has_begun: bool = True  # False where the kernel was ended before it took the cell up
    status: CellStatus = CellStatus.OK
    error: CellError | None = None
    exited: bool = False  # it ended the session with exit()
    exit_code: int | None = None  # it ended as a program does, by `sys.exit`; 0 is a good end
    notices: tuple[str, ...] = ()

    @property
    def raised(self) -> bool:
        """Whether its code raised an exception and all is well with its kernel; as judged."""
        if self.status is not CellStatus.ERROR or self.reply is None or self.gone is not None:
            return False
        return self.variables is Variables.KEPT and self.reply.status is CellStatus.ERROR


def judge(end: CellOutcome, kernel_end: End | None) -> CellOutcome:
    """Return it with what came of the cell; `kernel_end`: how its kernel ended, where that is
    known.
    """
    reply = end.reply
    if end.gone is not None or reply is None:
        return _without_kernel(end, kernel_end)
    left = Variables.LOST if reply.ask_exit else end.variables
    notices = (reply.notice,) if reply.notice else ()
    exit_code = reply.exit_code
    if reply.ask_exit and exit_code is None and reply.status is CellStatus.OK:
        exit_code = 0
    end = replace(
        end,
        status=reply.status,
        error=None if reply.status is CellStatus.OK else reply.error,
        notices=notices,
        variables=left,
        exited=reply.ask_exit,
        exit_code=exit_code,
    )
    if kernel_end is not None and not reply.ask_exit and end.cut is None:
        # It came to its end because its kernel did: a child of it was stopped first, say.
        end = replace(end, variables=Variables.KEPT if end.is_stateless else Variables.LOST)
        return _stopped(end, kernel_end) if kernel_end.reason in _WANTED else end
    if end.cut is CellStatus.CANCELLED and reply.status is CellStatus.OK and left is Variables.KEPT:
        told = ("The cell was interrupted and ended well all the same.",) if end.steps else ()
        return replace(end, notices=(*notices, *told))
    if end.cut is not None and end.steps:
        return replace(end, status=end.cut, error=reply.error or _cut_error(end), exit_code=None)
    return end


def _without_kernel(end: CellOutcome, kernel_end: End | None) -> CellOutcome:
    if end.cut is not None:
        return replace(end, status=end.cut, error=_cut_error(end))
    if kernel_end is not None and kernel_end.reason in _WANTED:
        return _stopped(end, kernel_end)
    name, text = "KernelDied", end.gone.detail if end.gone else "The kernel is gone."
    if kernel_end is not None:
        name = "ResourceLimitExceeded" if kernel_end.reason in _LIMITS else name
        what, lost = ("shell", "") if end.is_stateless else ("kernel", "; all variables are lost")
        text = (
            f"The {what} {how_it_ended(kernel_end)} while the cell ran. The cell is not run "
            f"again{lost}."
        )
        if kernel_end.stderr_tail:
            text += f"\nLast words of the {what}:\n{last_lines(kernel_end.stderr_tail)}"
    return replace(end, status=CellStatus.ERROR, error=CellError(name, text))


def _stopped(end: CellOutcome, kernel_end: End) -> CellOutcome:
    error = CellError("KernelStopped", f"The kernel {how_it_ended(kernel_end)} while the cell ran.")
    return replace(end, status=CellStatus.CANCELLED, error=error)


def _cut_error(end: CellOutcome) -> CellError:
    if not end.is_stateless and not end.has_begun and end.gone is not None:
        text = (
            "The cell never began: the kernel did not answer and was killed, all variables are "
            "lost."
        )
        return CellError("KernelUnresponsive", text)
    text = "The cell was interrupted; its kernel lives on."
    if end.is_stateless:
        text = "The cell was ended."
    elif end.variables is Variables.LOST:
        text = (
            "The cell did not yield to an interrupt: the kernel was killed, all variables are lost."
        )
    return CellError("TimedOut" if end.cut is CellStatus.TIMED_OUT else "Cancelled", text)


# -- what a call is answered with ------------------------------------------------------------------

_INPUT = (
    " The cell asked for input, which cells cannot get here. Put the value into the code, or read "
    "it from a file."
)


class CellPlace(Struct, frozen=True):
    index: int  # counts from 0
    count: int
    title: str | None = None
    is_own: bool = False  # the session is the call's own: its variables end with it

    def __str__(self) -> str:
        number = "The cell" if self.count == 1 else f"Cell {self.index + 1} of {self.count}"
        return f"{number} ({' '.join(self.title.split())})" if self.title else number

    @property
    def left_out(self) -> str:
        first, last = self.index + 2, self.count
        if first > last:
            return ""
        return (
            f" Cell {last} was not run."
            if first == last
            else f" Cells {first} to {last} were not run."
        )


def sentence(where: CellPlace, end: CellOutcome, after_seconds: float) -> str | None:
    """Return the sentence that a call is answered with after this cell, so long after its arrival;
    None: all is well.

    `end`: as judged.
    """
    left = where.left_out
    if end.exited:
        return (
            f"{where} ended the session with exit(). Variables are gone; the next call starts a "
            f"new kernel.{left}"
        )
    if end.exit_code == 0:
        return f"{where} ended the call with exit code 0.{left}" if left else None
    if end.status is CellStatus.OK:
        return None
    if where.is_own and end.variables is Variables.KEPT and not end.is_stateless:
        left += " The session was this call's own: its variables are gone with it."
    if end.status is not CellStatus.ERROR and end.cut is not None:
        why = "ran out of time" if end.status is CellStatus.TIMED_OUT else "was cancelled"
        by = f"after {after_seconds:.1f}".removesuffix(".0") + " s"
        by += f", by {end.steps[-1].action}" if end.steps else ""
        how = f"interrupted {by}" + ("" if where.is_own else "; variables are kept")
        if end.is_stateless:
            how = f"ended {by}"
        elif end.variables is Variables.LOST:
            how = f"the kernel was killed {by}; all variables are lost"
        if not end.has_begun and end.gone is not None:
            return (
                f"{where} never began: the kernel did not answer, and was killed {by}; all "
                f"variables are lost.{left}"
            )
        problem = end.steps[-1].detail if end.steps else None
        if end.reply is None and problem is not None:
            # The last step failed, and nobody said that the cell is over.
            lost = "" if end.is_stateless else "; all variables are lost"
            how = f"it is not known whether it has ended, {problem}{lost}"
        return f"{where} {why}: {how}.{left}"
    if end.error is not None and (end.gone is not None or end.status is CellStatus.CANCELLED):
        why, _, _ = end.error.value.partition("\n")
        return f"{where} was cut off. {why}{left}"
    if end.exit_code is not None:
        return f"{where} ended with exit code {end.exit_code}.{left}"
    name = end.error.name if end.error is not None else None
    what = f"{where} failed{f' ({name})' if name else ''}.{left}"
    if end.variables is Variables.LOST:
        return f"{what} The kernel is gone: all variables are lost."
    return what + (_INPUT if name == "StdinNotImplementedError" else "")
