"""What is told when no interpreter runs: which were tried, why not, and the command that helps."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError, InvalidInputError, PxError, StartFailedError
from supervisord_py.kernels.choosing.candidates import MANAGED, Source

if TYPE_CHECKING:
    from supervisord_py.kernels.choosing.explanation import Attempt, Explanation

CHOOSE_ANOTHER = "pxctl kernel start --explain"


class NoneRunsError(Exception):
    """No candidate runs. Goes no further than the door of this room, which turns it into a `PxError`.

    Attributes:
        explanation: What was tried.
        buildable: An overlay, if it may be built, would do.
    """

    def __init__(self, explanation: Explanation, *, buildable: bool) -> None:
        super().__init__(explanation.failure)
        self.explanation = explanation
        self.buildable = buildable


def sentence(attempts: tuple[Attempt, ...]) -> str:
    """Say why there is no interpreter."""
    if len(attempts) == 1:
        return f"the interpreter {attempts[0].sentence}"
    there = [each for each in attempts if each.passed_over]
    if there:
        return f"no Python for cells: {'; '.join(each.sentence for each in there)}"
    return f"no Python for cells: none of {', '.join(each.path for each in attempts)} is there"


def error_of(none: NoneRunsError) -> PxError:
    """Return the error for a call: what was named in a request is input, in a setting configuration."""
    explanation = none.explanation
    detail, attempts = explanation.failure or "no Python for cells", explanation.attempts
    source = attempts[0].source if attempts else Source.PATH
    hint = _hint(explanation)
    if source is Source.REQUEST:
        errors = [{"pointer": "/interpreter", "message": detail}]
        return InvalidInputError(detail, hint=hint, errors=errors, explanation=explanation.document())
    if source is Source.SETTING:
        return ConfigError(detail, hint=hint, key=source.value, explanation=explanation.document())
    if source is Source.KERNELSPEC:
        return ConfigError(detail, hint=hint, kernelspec=explanation.kernelspec, explanation=explanation.document())
    return StartFailedError(
        detail, hint=hint, reason="spawn_failed", stage="interpreter", explanation=explanation.document()
    )


def _hint(explanation: Explanation) -> str:
    remedy = next((each.remedy for each in explanation.attempts if each.remedy), None)
    if remedy is not None:
        return remedy
    if any(each.source.decisive for each in explanation.attempts):
        return CHOOSE_ANOTHER
    venv = shlex.quote(f"{explanation.cwd.rstrip('/')}/.venv")
    return f"python3 -m venv {venv} && {venv}/bin/python -m pip install ipykernel"


def managed_is_off(*, by_request: bool) -> PxError:
    """Return the error for the managed environment where the settings turn it off."""
    detail = "the managed environment is turned off by [kernels] managed = false"
    hint = "PX_KERNELS__MANAGED=true, or name another interpreter"
    if by_request:
        return InvalidInputError(detail, hint=hint, errors=[{"pointer": "/interpreter", "message": detail}])
    return ConfigError(f"kernels.python = {MANAGED!r}, but {detail}", hint=hint, key=Source.SETTING.value)


def two_interpreters(kernelspec: str) -> InvalidInputError:
    """Return the error for a request that names an interpreter and a kernelspec that has its own."""
    detail = f"the kernelspec {kernelspec} says itself what it runs; no other interpreter can be named beside it"
    errors = [{"pointer": "/interpreter", "message": detail}]
    return InvalidInputError(detail, hint="name the one or the other", errors=errors)
