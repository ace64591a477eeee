"""The one exception tree: what went wrong, in words that every surface shares.

An error has a *kind* (one word, stable, machine-readable), a *detail* (what, where, why) and a *hint* (the next
step). Its HTTP status and the exit code of the client follow from the kind, so that the API, the client and the
ledger can never disagree. `problem()` gives the RFC 9457 problem document of CONTRACT §4.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INACTIVE = 3
EXIT_UNKNOWN_UNIT = 4
EXIT_UNREACHABLE = 5
EXIT_PERMISSION = 6
EXIT_TIMED_OUT = 7
EXIT_CONFLICT = 8
EXIT_LIMIT = 9
EXIT_BAD_SETTINGS = 78


class PxError(Exception):
    """Root of every error that a user may see.

    Attributes:
        detail: What went wrong, where and why, in one or two sentences.
        hint: The next step, usually a command; None where there is none.
        unit: The unit it is about (`tool:x`), or None.
        extra: Further members of the problem document (JSON values).
    """

    kind: ClassVar[str] = "failed"  # one stable word for machines
    title: ClassVar[str] = "Operation failed"  # a short phrase for people, the same for every error of the kind
    status: int = 500  # HTTP status of the problem document
    exit_code: int = EXIT_FAILED  # what `pxctl` exits with (CONTRACT §3)

    def __init__(self, detail: str, *, hint: str | None = None, unit: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.unit = unit
        self.extra = extra

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


class BadRequestError(PxError):
    """The request cannot be understood: bad JSON, bad parameter."""

    kind = "bad_request"
    title = "Bad request"
    status = 400
    exit_code = EXIT_USAGE


class AmbiguousNameError(BadRequestError):
    """A name fits several units; `candidates` lists them."""

    kind = "ambiguous_name"
    title = "Ambiguous name"


class ForbiddenError(PxError):
    """The peer may not do this."""

    kind = "forbidden"
    title = "Permission denied"
    status = 403
    exit_code = EXIT_PERMISSION


class UnknownUnitError(PxError):
    """There is no such unit."""

    kind = "unknown_unit"
    title = "No such unit"
    status = 404
    exit_code = EXIT_UNKNOWN_UNIT


class ConflictError(PxError):
    """The request contradicts the present state."""

    kind = "conflict"
    title = "Conflict"
    status = 409
    exit_code = EXIT_CONFLICT


class SurvivorsError(ConflictError):
    """Something outlived a stop; `survivors` names it."""

    kind = "survivors"
    title = "Something survived the stop"


class CancelledRunError(PxError):
    """The run was cancelled before it ended."""

    kind = "cancelled"
    title = "Cancelled"
    status = 409


class InterruptedRunError(PxError):
    """The run was cut off through no fault of its own; asking again is safe to try."""

    kind = "interrupted"
    title = "Interrupted"
    status = 503


class TooLargeError(PxError):
    """A body is over its limit; `limit_bytes` and `setting` name it."""

    kind = "too_large"
    title = "Body too large"
    status = 413
    exit_code = EXIT_USAGE


class InvalidInputError(PxError):
    """The input does not fit the schema; `errors` is a list of `{pointer, message}`."""

    kind = "invalid_input"
    title = "Input does not fit"
    status = 422
    exit_code = EXIT_USAGE


class ConfigError(PxError):
    """A file that a user wrote is broken; file, line and pointer are in the detail and in `extra`."""

    kind = "config_error"
    title = "Broken configuration"
    status = 422
    exit_code = EXIT_USAGE


class OverloadedError(PxError):
    """No capacity within the request's time; `retry_after_seconds` says when to ask again."""

    kind = "overloaded"
    title = "No capacity"
    status = 429


class StartFailedError(PxError):
    """A child did not come up. `reason` is one of CONTRACT §7; exit code, signal and stderr tail ride along."""

    kind = "start_failed"
    title = "Start failed"
    status = 503


class ReadinessTimeoutError(StartFailedError):
    """A child lives but never became ready."""

    kind = "readiness_timeout"
    title = "Not ready in time"
    status = 504
    exit_code = EXIT_TIMED_OUT


class ToolFailedError(PxError):
    """A tool answered with an error, broke off, or died during a run. `status` is the tool's own where it gave one."""

    kind = "tool_failed"
    title = "The tool failed"
    status = 502


class ResourceLimitError(PxError):
    """A limit was exceeded and enforced; `limit` is memory, runtime or cpu."""

    kind = "limit_exceeded"
    title = "ResourceLimitExceeded"
    status = 503
    exit_code = EXIT_LIMIT


class TimedOutError(PxError):
    """The caller's own deadline passed."""

    kind = "timed_out"
    title = "Timed out"
    status = 504
    exit_code = EXIT_TIMED_OUT


class ShuttingDownError(PxError):
    """The daemon is stopping."""

    kind = "shutdown"
    title = "The daemon is stopping"
    status = 503


class KeeperLostError(PxError):
    """The keeper is gone or does not answer; nothing can be spawned or stopped through it."""

    kind = "keeper_lost"
    title = "The keeper is gone"
    status = 503
