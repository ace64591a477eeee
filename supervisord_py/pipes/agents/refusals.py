"""Why an execution cannot be started: one exception that carries the error type of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from supervisord_py.errors import PxError

if TYPE_CHECKING:
    from supervisord_py.pipes.execution import ErrorType


class CannotRunError(PxError):
    """An agent cannot be run: not found, not compatible, no key, no provider, no model.

    Attributes:
        error_type: Of the execution's row.
    """

    kind: ClassVar[str] = "cannot_run"
    title: ClassVar[str] = "The agent cannot be run"
    status = 503

    def __init__(self, error_type: ErrorType, detail: str, *, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint, error_type=error_type.value)
        self.error_type = error_type

    @property
    def message(self) -> str:
        """`error_message` of the row: what is wrong, and the cure."""
        return f"{self.detail}; {self.hint}" if self.hint else self.detail
