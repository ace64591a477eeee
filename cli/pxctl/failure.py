"""What goes wrong, as the client says it: one exception, one problem document, one exit code (CONTRACT §3, §4).

A failure is either the daemon's own problem document, passed on unchanged, or one of the client's own making in the
same shape. Nothing else may leave a command.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OK = 0
FAILED = 1
USAGE = 2
INACTIVE = 3
UNKNOWN_UNIT = 4
UNREACHABLE = 5
PERMISSION = 6
TIMED_OUT = 7
CONFLICT = 8

_EXIT_BY_STATUS = {400: 2, 401: 6, 403: 6, 404: 4, 409: 8, 413: 2, 422: 2, 504: 7}


class Failure(Exception):
    """An outcome to report and to exit with.

    Attributes:
        detail: What, where, why.
        kind: One stable word.
        hint: The next command, or None.
        exit_code: CONTRACT §3.
        unit: `kind:name`, or None.
        extra: Further members of the problem document.
        action: What was being done ("run tool:x"); None where the command says it.
    """

    def __init__(
        self,
        detail: str,
        *,
        kind: str = "failed",
        hint: str | None = None,
        exit_code: int = FAILED,
        unit: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.kind = kind
        self.hint = hint
        self.exit_code = exit_code
        self.unit = unit
        self.extra = extra
        self.action: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        return {
            "type": f"urn:px:problem:{self.kind}",
            "title": self.kind.replace("_", " ").capitalize(),
            "status": None,
            "kind": self.kind,
            "detail": self.detail,
            "hint": self.hint,
            "unit": self.unit,
            "exit_code": self.exit_code,
            **self.extra,
        }


class Problem(Failure):
    """The daemon's own problem document, passed on as it came."""

    def __init__(self, status: int, members: dict[str, Any]) -> None:
        code = members.get("exit_code")
        known = isinstance(code, int) and not isinstance(code, bool) and 0 < code < 256
        super().__init__(
            str(members.get("detail") or members.get("title") or f"the daemon answered {status}"),
            kind=str(members.get("kind") or "failed"),
            hint=str(members["hint"]) if members.get("hint") else None,
            exit_code=int(code) if known and code is not None else exit_code_for(status),
            unit=str(members["unit"]) if members.get("unit") else None,
        )
        self.status = status
        self.members = members

    def document(self) -> dict[str, Any]:
        """Return the daemon's document, with the members that the client relies on filled in."""
        document = super().document()
        document["status"] = self.status
        return {**document, **self.members, "exit_code": self.exit_code}


class Unreachable(Failure):
    """No daemon answers at the socket."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"no daemon answers at {path}: {why}",
            kind="unreachable",
            hint="pxctl daemon start",
            exit_code=UNREACHABLE,
            socket=path,
        )


class Interrupted(Failure):
    """The connection was lost after the request went out: whether it happened is unknown; asking again is safe."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the connection to the daemon was lost: {why}",
            kind="interrupted",
            hint="run the same command again",
            retryable=True,
        )


class Silent(Exception):
    """End with this exit code; everything was said already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def raise_problem(event: dict[str, Any]) -> None:
    """Raise the problem that an event is, if it is one."""
    if str(event.get("type", "")).startswith("urn:px:problem:"):
        status = event.get("status")
        raise Problem(status if isinstance(status, int) else 500, event)


def usage(detail: str, hint: str) -> Failure:
    """Return the failure of a call that cannot be meant so."""
    return Failure(detail, kind="usage", hint=hint, exit_code=USAGE)


def exit_code_for(status: int) -> int:
    """Map an HTTP status to an exit code, for documents that do not say it themselves."""
    return _EXIT_BY_STATUS.get(status, FAILED)
