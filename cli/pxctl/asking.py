"""Asking a person before something is deleted. Where nobody is there to answer, the answer is no."""

from __future__ import annotations

import sys

from pxctl import terminal
from pxctl.failure import FAILED, USAGE, Failure, Silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_STDIN = 0


def confirm_removal(invocation: Invocation, unit: str, hint: str) -> None:
    """Return when the user says that a unit and its folder may go.

    Args:
        invocation: Whose terminal.
        unit: `kind:name`.
        hint: The command that does not ask.

    Raises:
        Failure: Nobody can be asked.
        Silent: The answer is no.
    """
    if not terminal.is_terminal(_STDIN) or not invocation.err_is_terminal:
        raise Failure("nobody is there to be asked", kind="unconfirmed", hint=hint, exit_code=USAGE, unit=unit)
    sys.stderr.write(f"Remove {unit} and its folder? [y/N] ")
    sys.stderr.flush()
    if terminal.read_answer().strip().lower() not in {"y", "yes"}:
        invocation.warn("not removed")
        raise Silent(FAILED)
