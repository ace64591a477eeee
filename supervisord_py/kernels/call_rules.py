"""What a call may ask for, and what the end of a cell means. Pure: no clock, no I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell import CellError, CellStatus, Variables
from supervisord_py.kernels.messages import death_in_cell, how_it_ended
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.errors import PxError
    from supervisord_py.kernels.backend import Reply
    from supervisord_py.kernels.cell import Step
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.instance import End

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_MAX = 64
DEFAULT_NAME = "default"


class Timeout(Struct, frozen=True):
    """The time a call has, in seconds. `notice` says what was changed about it, None when nothing was."""

    seconds: float
    notice: str | None = None


def timeout_of(asked: float | None, config: KernelsConfig) -> Timeout:
    """Return the time in force for what was asked; None is the default."""
    if asked is None:
        return Timeout(config.timeout_seconds)
    low, high = config.timeout_min_seconds, config.timeout_max_seconds
    if asked < low:
        never = "" if asked > 0 else f": {asked:g} does not mean for ever"
        return Timeout(low, f"timeout {asked:g} s was raised to {low:g} s, the least there is{never}.")
    if asked > high:
        most = "the most there is (kernels.timeout_max_seconds)"
        return Timeout(high, f"timeout {asked:g} s was cut to {high:g} s, {most}.")
    return Timeout(asked)


def session_name(asked: str | None) -> str:
    """Return the name of a session as asked for, or the default one.

    Raises:
        InvalidInputError: It cannot be one; the hint has the nearest name that can.
    """
    if asked is None:
        return DEFAULT_NAME
    if NAME.fullmatch(asked):
        return asked
    raise _refused(
        "/name",
        f"must be 1 to {NAME_MAX} letters, digits, '.', '_' or '-', the first a letter or digit, not {_shown(asked)}",
        hint=f"Nearest valid name: {nearest_name(asked)}",
    )


def nearest_name(asked: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", asked).lstrip("._-")
    return words[:NAME_MAX].rstrip("-") or DEFAULT_NAME


def _refused(pointer: str, message: str, *, hint: str) -> InvalidInputError:
    field = pointer.removeprefix("/")
    return InvalidInputError(f"{field} {message}.", hint=hint, errors=[{"pointer": pointer, "message": message}])


def _shown(text: str) -> str:
    shown = ascii(text[:NAME_MAX])
    return shown if len(text) <= NAME_MAX else f"{shown} and {len(text) - NAME_MAX} characters more"


# -- what the end of a cell means --------------------------------------------------------------------------------------

_OURS = frozenset(
    {
        Reason.STOPPED,
        Reason.REPLACED,
        Reason.SHUTDOWN,
        Reason.EVICTED_LRU,
        Reason.EVICTED_TTL,
        Reason.CANCELLED,
        Reason.TIMEOUT,
    }
)
"""Ends that somebody wanted: no fault of the cell."""
_NO_INPUT = "StdinNotImplementedError"


class CellOutcome(Struct, frozen=True):
    """How a cell ended; from `judge` on, what that means beside its output."""

    reply: Reply | None = None  # the kernel's word; None when it gave none
    gone: PxError | None = None  # what said that the kernel is gone
    cut: CellStatus | None = None  # TIMED_OUT or CANCELLED when it was made to end
    variables: Variables = Variables.KEPT  # what became of the session's state
    steps: tuple[Step, ...] = ()  # rungs that were taken
    is_stateless: bool = False  # there are no variables: a shell cell
    status: CellStatus = CellStatus.OK
    error: CellError | None = None
    exited: bool = False  # it ended the session with exit()
    notices: tuple[str, ...] = ()


def judge(end: CellOutcome, kernel_end: End | None) -> CellOutcome:
    """Return it with what came of the cell; `kernel_end`: how its kernel ended, where that is known."""
    reply = end.reply
    if end.gone is not None or reply is None:
        return _without_kernel(end, kernel_end)
    end = replace(end, status=reply.status, error=reply.error, notices=(reply.notice,) if reply.notice else ())
    if kernel_end is not None and not reply.ask_exit and end.cut is None:
        # It came to its end because its kernel did: a child of it was stopped first, say.
        end = replace(end, variables=Variables.KEPT if end.is_stateless else Variables.LOST, notices=())
        if kernel_end.reason not in _OURS:
            return end
        error = CellError("KernelStopped", f"The kernel {how_it_ended(kernel_end)} while the cell ran.")
        return replace(end, status=CellStatus.CANCELLED, error=error)
    if end.cut is CellStatus.CANCELLED and reply.status is CellStatus.OK and end.variables is Variables.KEPT:
        told = ("The cell was interrupted and ended well all the same.",) if end.steps else ()
        return replace(end, error=None, exited=reply.ask_exit, notices=(*end.notices, *told))
    if end.cut is not None and end.steps:
        return replace(end, status=end.cut, error=reply.error or _cut_error(end))
    variables = Variables.LOST if reply.ask_exit else end.variables
    return replace(end, variables=variables, exited=reply.ask_exit)


def _without_kernel(end: CellOutcome, kernel_end: End | None) -> CellOutcome:
    if end.cut is not None:
        return replace(end, status=end.cut, error=_cut_error(end))
    if kernel_end is None:
        detail = end.gone.detail if end.gone else "The kernel is gone."
        return replace(end, status=CellStatus.ERROR, error=CellError("KernelDied", detail))
    if kernel_end.reason in _OURS:
        text = f"The kernel {how_it_ended(kernel_end)} while the cell ran; all variables are lost."
        return replace(end, status=CellStatus.CANCELLED, error=CellError("KernelStopped", text))
    return replace(end, status=CellStatus.ERROR, error=death_in_cell(kernel_end))


def _cut_error(end: CellOutcome) -> CellError:
    name = "TimedOut" if end.cut is CellStatus.TIMED_OUT else "Cancelled"
    if end.is_stateless:
        return CellError(name, "The cell was ended.")
    if end.variables is Variables.KEPT:
        return CellError(name, "The cell was interrupted; its kernel lives on.")
    return CellError(name, "The cell did not yield to an interrupt: the kernel was killed, all variables are lost.")


# -- what a call is answered with --------------------------------------------------------------------------------------

INPUT_FAILURE = (
    "The cell asked for input, and nobody is there to type it. Put the value into the code, or read it from a file or "
    "an environment variable."
)
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


def sentence(where: Stopped, end: CellOutcome, kernel_end: End | None, after_seconds: float) -> str | None:
    """Return the sentence that a call is answered with after this cell, so long after its arrival; None: all is well.

    Args:
        where: Which cell of how many.
        end: As judged.
        kernel_end: How its kernel ended, where it did.
        after_seconds: Since the arrival of the call.
    """
    if end.exited:
        return f"{where} ended the session with exit(). Variables are gone; the next call starts a new kernel." + (
            where.left_out
        )
    if end.status is CellStatus.OK:
        return None
    if end.status is not CellStatus.ERROR and end.cut is not None:
        return _cut_off(where, end, after_seconds)
    if end.status is CellStatus.ERROR and end.gone is not None and kernel_end is not None:
        return (
            f"{where} took its kernel down: the process {how_it_ended(kernel_end)}. All variables are lost; "
            f"the cell is not run again.{where.left_out}"
        )
    if end.error is not None and (end.gone is not None or end.status is CellStatus.CANCELLED):
        return f"{where} was cut off. {end.error.value}{where.left_out}"
    return _failed(where, end)


def _failed(where: Stopped, end: CellOutcome) -> str:
    what = f"{where} failed ({end.error.name})." if end.error is not None else f"{where} failed."
    asked_for_input = end.error is not None and end.error.name == _NO_INPUT
    if end.variables is Variables.LOST:
        return what + where.left_out + " The kernel is gone: all variables are lost."
    kept, repair = "", ""
    if where.is_own:
        kept = _OWN
    elif where.index and not where.is_stateless:
        kept = " What the cells before it set is kept."
    if where.count > 1 and not where.is_own:
        repair = f" Repair cell {where.index + 1} and send from there on."
    return what + where.left_out + kept + repair + (f" {INPUT_FAILURE}" if asked_for_input else "")


def _cut_off(where: Stopped, end: CellOutcome, after_seconds: float) -> str:
    """Say how its time (TIMED_OUT) or a cancel ended it."""
    why = "ran out of time" if end.status is CellStatus.TIMED_OUT else "was cancelled"
    seconds = f"{after_seconds:.1f}".rstrip("0").rstrip(".") + " s"
    by = f"{seconds}, by {end.steps[-1].action}" if end.steps else seconds
    if where.is_stateless:
        return f"{where} {why}: ended after {by}.{where.left_out}"
    if end.variables is Variables.LOST:
        return f"{where} {why}: the kernel was killed after {by}; all variables are lost.{where.left_out}"
    if where.is_own:
        return f"{where} {why}: interrupted after {by}.{where.left_out}{_OWN}"
    return f"{where} {why}: interrupted after {by}; variables are kept.{where.left_out}"
