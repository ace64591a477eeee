"""The one exception tree: what went wrong, in words that every surface shares.

An error has a *kind* (one word, stable, machine-readable), a *detail* (what, where, why) and a
*hint* (the next step). Its HTTP status and the exit code of the client follow from the kind, so
that the API, the client and the ledger can never disagree. `problem()` gives the RFC 9457 problem
document of CONTRACT §4.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNKNOWN_UNIT = 4
EXIT_PERMISSION = 6
EXIT_TIMED_OUT = 7
EXIT_CONFLICT = 8
EXIT_LIMIT = 9
EXIT_BAD_SETTINGS = 78


class PxError(Exception):
    """Root of every error that a user may see."""

    kind: ClassVar[str] = "failed"  # one stable word for machines
    # a short phrase for people, the same for every error of the kind
    title: ClassVar[str] = "Operation failed"
    status: int = 500  # of the HTTP answer
    exit_code: int = EXIT_FAILED  # what `pxctl` exits with (CONTRACT §3)

    def __init_subclass__(cls, **facts: str | int) -> None:
        for name, value in facts.items():
            setattr(cls, name, value)

    def __init__(
        self, detail: str, *, hint: str | None = None, unit: str | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.detail = detail  # what went wrong, where and why, in one or two sentences
        self.hint = hint  # the next step, usually a command
        self.unit = unit  # it is about that one (`tool:x`)
        self.extra = extra  # further members of the problem document (JSON values)

    def fresh(self) -> Self:
        """Return a copy for one more who is to raise it: a traceback belongs to one raise."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        return twin

    def problem(self) -> dict[str, Any]:
        """Return the problem document: JSON values only, RFC 9457 members first."""
        return {
            "type": f"urn:px:problem:{self.kind}",
            "title": self.title,
            "status": self.status,
            "kind": self.kind,
            "detail": self.detail,
            "hint": self.hint,
            "unit": self.unit,
            "exit_code": self.exit_code,
            **self.extra,
        }


class InternalError(PxError, kind="internal", title="Internal error"):
    """A bug of ours. The log has the traceback under `request_id`."""


class BadRequestError(
    PxError, kind="bad_request", title="Bad request", status=400, exit_code=EXIT_USAGE
):
    """The request cannot be understood: bad JSON, bad parameter."""


class AmbiguousNameError(BadRequestError, kind="ambiguous_name", title="Ambiguous name"):
    """A name fits several units; `candidates` lists them."""


class ForbiddenError(
    PxError, kind="forbidden", title="Permission denied", status=403, exit_code=EXIT_PERMISSION
):
    """The peer may not do this."""


class UnknownUnitError(
    PxError, kind="unknown_unit", title="No such unit", status=404, exit_code=EXIT_UNKNOWN_UNIT
):
    """There is no such unit."""


class ConflictError(
    PxError, kind="conflict", title="Conflict", status=409, exit_code=EXIT_CONFLICT
):
    """The request contradicts the present state."""


class SurvivorsError(ConflictError, kind="survivors", title="Something survived the stop"):
    """Something outlived a stop; `survivors` names it."""


class CancelledRunError(PxError, kind="cancelled", title="Cancelled", status=409):
    """The run was cancelled before it ended."""


class InterruptedRunError(PxError, kind="interrupted", title="Interrupted", status=503):
    """The run was cut off through no fault of its own; asking again is safe to try."""


class TooLargeError(
    PxError, kind="too_large", title="Body too large", status=413, exit_code=EXIT_USAGE
):
    """A body is over its limit; `limit_bytes` and `setting` name it."""


class InvalidInputError(
    PxError, kind="invalid_input", title="Input does not fit", status=422, exit_code=EXIT_USAGE
):
    """The input does not fit the schema; `errors` is a list of `{pointer, message}`."""

    @classmethod
    def at(cls, pointer: str, message: str, hint: str, **extra: Any) -> Self:
        """Return the error of the one member that does not fit."""
        return cls(message, hint=hint, errors=[{"pointer": pointer, "message": message}], **extra)


class ConfigError(
    PxError, kind="config_error", title="Broken configuration", status=422, exit_code=EXIT_USAGE
):
    """A file that a user wrote is broken; file, line and pointer are in the detail and in
    `extra`.
    """


class OverloadedError(PxError, kind="overloaded", title="No capacity", status=429):
    """No capacity within the request's time; `retry_after_seconds` says when to ask again."""


class StartFailedError(PxError, kind="start_failed", title="Start failed", status=503):
    """A child did not come up.

    `reason` is one of CONTRACT §7; exit code, signal and stderr tail ride along.
    """


class ReadinessTimeoutError(
    StartFailedError,
    kind="readiness_timeout",
    title="Not ready in time",
    status=504,
    exit_code=EXIT_TIMED_OUT,
):
    """A child lives but never became ready."""


class ToolFailedError(PxError, kind="tool_failed", title="The tool failed", status=502):
    """A tool answered with an error, broke off, or died during a run.

    `status` is the tool's own where it gave one.
    """


class ResourceLimitError(
    PxError, kind="limit_exceeded", title="ResourceLimitExceeded", status=503, exit_code=EXIT_LIMIT
):
    """A limit was exceeded and enforced; `limit` is memory, runtime or cpu."""


class TimedOutError(
    PxError, kind="timed_out", title="Timed out", status=504, exit_code=EXIT_TIMED_OUT
):
    """The caller's own deadline passed."""


class ShuttingDownError(PxError, kind="shutdown", title="The daemon is stopping", status=503):
    """The daemon is stopping."""


class KeeperLostError(PxError, kind="keeper_lost", title="The keeper is gone", status=503):
    """The keeper is gone: its channel is closed. Nothing can be spawned or stopped through it."""


class KeeperTimeoutError(
    PxError,
    kind="keeper_timeout",
    title="The keeper does not answer",
    status=504,
    exit_code=EXIT_TIMED_OUT,
):
    """The keeper did not answer in time, but its channel is open.

    The outcome of the request is unknown: the keeper may have carried it out, or will do so once it
    runs again.
    """
