"""What a call may ask for, and the sentences that it is answered with. Pure: no clock, no I/O.

Laws: a number that is no time is refused and the field named; one outside the bounds is clamped, and that is told.
A sentence says what is true now: which cell, what became of the variables, what was not run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell import CellStatus, Variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.kernels.cell import Cell, Step
    from supervisord_py.kernels.config import KernelsConfig

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
