"""What a call may ask for, and what the end of a cell means. Pure: no clock, no I/O."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels import messages
from supervisord_py.kernels.cell import CellError, CellStatus, Variables
from supervisord_py.kernels.messages import death_in_cell, how_it_ended
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.kernels.backend import Reply
    from supervisord_py.kernels.cell import Cell
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.execution import CellEnd
    from supervisord_py.kernels.messages import Stopped
    from supervisord_py.process.instance import End

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_MAX = 64
DEFAULT_NAME = "default"


class Timeout(Struct, frozen=True):
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


class Judgement(Struct, frozen=True):
    """What came of a cell beside its output.

    Attributes:
        exited: It ended the session with exit().
    """

    status: CellStatus
    variables: Variables
    error: CellError | None = None
    exited: bool = False
    notices: tuple[str, ...] = ()


def judge(end: CellEnd, kernel_end: End | None) -> Judgement:
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


def _without_kernel(end: CellEnd, kernel_end: End | None) -> Judgement:
    if end.cut is not None:
        return Judgement(end.cut, end.variables, _cut_error(end))
    if kernel_end is None:
        detail = end.gone.detail if end.gone else "The kernel is gone."
        return Judgement(CellStatus.ERROR, end.variables, CellError("KernelDied", detail))
    if kernel_end.reason in _OURS:
        text = f"The kernel {how_it_ended(kernel_end)} while the cell ran; all variables are lost."
        return Judgement(CellStatus.CANCELLED, end.variables, CellError("KernelStopped", text))
    return Judgement(CellStatus.ERROR, end.variables, death_in_cell(kernel_end))


def _with_kernel(reply: Reply, kernel_end: End, is_stateless: bool) -> Judgement:
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
    where: Stopped, judged: Judgement, end: CellEnd, kernel_end: End | None, after_seconds: float
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
        return messages.left_by_user(where)
    return None if judged.status is CellStatus.OK else _trouble(where, judged, end, kernel_end, after_seconds)


def _trouble(where: Stopped, judged: Judgement, end: CellEnd, kernel_end: End | None, after_seconds: float) -> str:
    match judged.status:
        case CellStatus.TIMED_OUT | CellStatus.CANCELLED if end.cut is not None:
            return messages.cut_off(where, judged.status, after_seconds, judged.variables, end.steps)
        case CellStatus.ERROR if end.gone is not None and kernel_end is not None:
            return messages.died(where, _how(kernel_end))
        case CellStatus.ERROR if judged.error is not None and judged.error.name == _NO_INPUT:
            return messages.input_failed(where)
        case _ if judged.error is not None and (end.gone is not None or judged.status is CellStatus.CANCELLED):
            return f"{where} was cut off. {judged.error.value}{where.left_out}"
        case _:
            return messages.failed(where, judged.error.name if judged.error else None, judged.variables)


def _how(kernel_end: End) -> str:
    """Say it after `the process ended`."""
    words = how_it_ended(kernel_end)
    for verb, short in (("was killed by ", "by "), ("exited with ", "with "), ("ended at ", "at ")):
        if words.startswith(verb):
            return short + words.removeprefix(verb)
    return f"({words})"
