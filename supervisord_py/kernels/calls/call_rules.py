"""What a call may ask for, and the sentences that it is answered with. Pure: no clock, no I/O."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell import CellError, CellStatus, Variables
from supervisord_py.kernels.kernel_endings import death_in_cell, how_it_ended
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.kernels.backend import Reply
    from supervisord_py.kernels.cell import Cell, Step
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.kernel_endings import KernelEnd
    from supervisord_py.kernels.lives.cell_run import CellEnd

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_MAX = 64
DEFAULT_NAME = "default"
INPUT_FAILURE = (
    "The cell asked for input, and nobody is there to type it. Put the value into the code, or read it from a file or "
    "an environment variable."
)
RECYCLED = "The kernel was over its soft memory limit and was replaced after the call: variables are gone."
RESTARTED = "The kernel had died and was started again: variables of earlier calls are gone."


@dataclass(frozen=True, slots=True)
class Timeout:
    """The time a call has, in seconds. `notice` says what was changed about it, None when nothing was."""

    seconds: float
    notice: str | None = None

    @property
    def clamped(self) -> bool:
        """True when it is not what was asked for."""
        return self.notice is not None


def timeout_of(asked: float | None, config: KernelsConfig) -> Timeout:
    """Return the time in force for what was asked; None is the default.

    Raises:
        InvalidInputError: Not a time: infinite, not a number.
    """
    if asked is None:
        return Timeout(config.timeout_seconds)
    if not math.isfinite(asked):
        low, high = config.timeout_min_seconds, config.timeout_max_seconds
        raise _refused(
            "/timeout",
            f"must be a number of seconds from {low:g} to {high:g}, not {asked:g}",
            hint=f"Leave it out for the default of {config.timeout_seconds:g} s.",
        )
    if asked <= 0:
        why = f"the least there is: {asked:g} does not mean for ever"
        return _clamped(asked, config.timeout_min_seconds, "raised", why)
    if asked < config.timeout_min_seconds:
        return _clamped(asked, config.timeout_min_seconds, "raised", "the least there is")
    if asked > config.timeout_max_seconds:
        return _clamped(asked, config.timeout_max_seconds, "cut", "the most there is (kernels.timeout_max_seconds)")
    return Timeout(asked)


def _clamped(asked: float, seconds: float, verb: str, why: str) -> Timeout:
    return Timeout(seconds, f"timeout {asked:g} s was {verb} to {seconds:g} s, {why}.")


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
    """Return the valid name that is nearest to a text."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", asked).lstrip("._-")
    return words[:NAME_MAX].rstrip("-") or DEFAULT_NAME


def check_cells(cells: Sequence[Cell]) -> None:
    """Refuse a call with nothing in it.

    Raises:
        InvalidInputError: There is no cell.
    """
    if not cells:
        raise _refused("/cells", "must have at least one cell", hint='Send `code`, or `cells: [{"code": …}]`.')


def _refused(pointer: str, message: str, *, hint: str) -> InvalidInputError:
    field = pointer.removeprefix("/")
    return InvalidInputError(f"{field} {message}.", hint=hint, errors=[{"pointer": pointer, "message": message}])


def _shown(text: str) -> str:
    shown = ascii(text[:NAME_MAX])
    return shown if len(text) <= NAME_MAX else f"{shown} and {len(text) - NAME_MAX} characters more"


# -- sentences ---------------------------------------------------------------------------------------------------------


_OWN = " The session was this call's own: its variables are gone with it."


@dataclass(frozen=True, slots=True)
class Stopped:
    """Where a call ended early: the cell, and how many there are.

    Attributes:
        index: Counts from 0.
        is_own: The session is the call's own: its variables end with it.
        is_stateless: There are no variables, so nothing is said of them: shell cells.
    """

    index: int
    count: int
    title: str | None = None
    is_own: bool = False
    is_stateless: bool = False

    def __str__(self) -> str:
        """Name the cell."""
        number = "The cell" if self.count == 1 else f"Cell {self.index + 1} of {self.count}"
        return f"{number} ({_one_line(self.title)})" if self.title else number

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
    """Return the sentence of a call that was ended by its time (`timed_out`) or by a cancel.

    Args:
        where: The cell that was running.
        status: TIMED_OUT or CANCELLED.
        after_seconds: Since the arrival of the call.
        variables: What the ladder left.
        steps: Its rungs; the last one is named.
    """
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


def _one_line(title: str) -> str:
    return " ".join(title.split())


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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of a cell beside its output.

    Attributes:
        exited: It ended the session with exit().
    """

    status: CellStatus
    variables: Variables
    error: CellError | None = None
    exited: bool = False
    notices: tuple[str, ...] = ()

    @property
    def stops_the_call(self) -> bool:
        """Whether later cells are not to be run."""
        return self.status is not CellStatus.OK or self.exited


def judge(end: CellEnd, kernel_end: KernelEnd | None) -> Judgement:
    """Say what came of a cell.

    Args:
        end: How it ended.
        kernel_end: How its kernel ended, where that is known.
    """
    if end.gone is not None:
        return _without_kernel(end, kernel_end)
    reply = end.reply
    if reply is None:
        raise AssertionError(end)
    notices = (reply.notice,) if reply.notice else ()
    if kernel_end is not None and not reply.asked_exit and end.cut is None:
        return _with_kernel(reply, kernel_end, end.is_stateless)
    if end.cut is CellStatus.CANCELLED and reply.status is CellStatus.OK and end.variables is Variables.KEPT:
        text = "The cell was interrupted and ended well all the same." if end.steps else None
        return Judgement(CellStatus.OK, end.variables, None, reply.asked_exit, (*notices, text) if text else notices)
    if end.cut is not None and end.steps:
        return Judgement(end.cut, end.variables, reply.error or _cut_error(end), notices=notices)
    variables = Variables.LOST if reply.asked_exit else end.variables
    return Judgement(reply.status, variables, reply.error, reply.asked_exit, notices)


def _without_kernel(end: CellEnd, kernel_end: KernelEnd | None) -> Judgement:
    if end.cut is not None:
        return Judgement(end.cut, end.variables, _cut_error(end))
    if kernel_end is None:
        detail = end.gone.detail if end.gone else "The kernel is gone."
        return Judgement(CellStatus.ERROR, end.variables, CellError("KernelDied", detail))
    if kernel_end.reason in _OURS:
        text = f"The kernel {how_it_ended(kernel_end)} while the cell ran; all variables are lost."
        return Judgement(CellStatus.CANCELLED, end.variables, CellError("KernelStopped", text))
    return Judgement(CellStatus.ERROR, end.variables, death_in_cell(kernel_end))


def _with_kernel(reply: Reply, kernel_end: KernelEnd, is_stateless: bool) -> Judgement:
    """Judge a cell that came to its end because its kernel did: a child of it was stopped first, say."""
    variables = Variables.KEPT if is_stateless else Variables.LOST
    if kernel_end.reason not in _OURS:
        return Judgement(reply.status, variables, reply.error)
    text = f"The kernel {how_it_ended(kernel_end)} while the cell ran."
    return Judgement(CellStatus.CANCELLED, variables, CellError("KernelStopped", text))


def _cut_error(end: CellEnd) -> CellError:
    name = "TimedOut" if end.cut is CellStatus.TIMED_OUT else "Cancelled"
    if end.is_stateless:
        return CellError(name, "The cell was ended.")
    if end.variables is Variables.KEPT:
        return CellError(name, "The cell was interrupted; its kernel lives on.")
    return CellError(name, "The cell did not yield to an interrupt: the kernel was killed, all variables are lost.")


def sentence(
    where: Stopped, judged: Judgement, end: CellEnd, kernel_end: KernelEnd | None, after_seconds: float
) -> str | None:
    """Return the sentence that a call is answered with after this cell; None when all is well.

    Args:
        where: Which cell of how many.
        judged: What came of it.
        end: How it ended.
        kernel_end: How its kernel ended, where it did.
        after_seconds: Since the arrival of the call.
    """
    if judged.exited:
        return left_by_user(where)
    return None if judged.status is CellStatus.OK else _trouble(where, judged, end, kernel_end, after_seconds)


def _trouble(
    where: Stopped, judged: Judgement, end: CellEnd, kernel_end: KernelEnd | None, after_seconds: float
) -> str:
    match judged.status:
        case CellStatus.TIMED_OUT | CellStatus.CANCELLED if end.cut is not None:
            return cut_off(where, judged.status, after_seconds, judged.variables, end.steps)
        case CellStatus.ERROR if end.gone is not None and kernel_end is not None:
            return died(where, _how(kernel_end))
        case CellStatus.ERROR if judged.error is not None and judged.error.name == _NO_INPUT:
            return input_failed(where)
        case _ if judged.error is not None and (end.gone is not None or judged.status is CellStatus.CANCELLED):
            return f"{where} was cut off. {judged.error.value}{where.left_out}"
        case _:
            return failed(where, judged.error.name if judged.error else None, judged.variables)


def _how(kernel_end: KernelEnd) -> str:
    """Say it after `the process ended`."""
    words = how_it_ended(kernel_end)
    for verb, short in (("was killed by ", "by "), ("exited with ", "with "), ("ended at ", "at ")):
        if words.startswith(verb):
            return short + words.removeprefix(verb)
    return f"({words})"
