"""What a cell's end means: its status, its error, what to tell. Pure.

Law: what is said of the variables is what happened to them. A cell that was asked to end and ended well all the same
was not cancelled; one whose time was over timed out, however it ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.kernels.calls import call_rules
from supervisord_py.kernels.cell import CellError, CellStatus, Variables
from supervisord_py.kernels.kernel_endings import death_in_cell, how_it_ended
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import Reply
    from supervisord_py.kernels.calls.call_rules import Stopped
    from supervisord_py.kernels.kernel_endings import KernelEnd
    from supervisord_py.kernels.lives.cell_run import CellEnd

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
        return call_rules.left_by_user(where)
    return None if judged.status is CellStatus.OK else _trouble(where, judged, end, kernel_end, after_seconds)


def _trouble(
    where: Stopped, judged: Judgement, end: CellEnd, kernel_end: KernelEnd | None, after_seconds: float
) -> str:
    match judged.status:
        case CellStatus.TIMED_OUT | CellStatus.CANCELLED if end.cut is not None:
            return call_rules.cut_off(where, judged.status, after_seconds, judged.variables, end.steps)
        case CellStatus.ERROR if end.gone is not None and kernel_end is not None:
            return call_rules.died(where, _how(kernel_end))
        case CellStatus.ERROR if judged.error is not None and judged.error.name == _NO_INPUT:
            return call_rules.input_failed(where)
        case _ if judged.error is not None and (end.gone is not None or judged.status is CellStatus.CANCELLED):
            return f"{where} was cut off. {judged.error.value}{where.left_out}"
        case _:
            return call_rules.failed(where, judged.error.name if judged.error else None, judged.variables)


def _how(kernel_end: KernelEnd) -> str:
    """Say it after `the process ended`."""
    words = how_it_ended(kernel_end)
    for verb, short in (("was killed by ", "by "), ("exited with ", "with "), ("ended at ", "at ")):
        if words.startswith(verb):
            return short + words.removeprefix(verb)
    return f"({words})"
