"""Failures and their exit codes (CONTRACT §3, §4).

A failure is the daemon's own problem document, passed on unchanged, or one of the client's making in the same shape.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


class Exit:
    OK, FAILED, USAGE, INACTIVE, UNKNOWN_UNIT, UNREACHABLE, PERMISSION, TIMED_OUT, CONFLICT, LIMIT_EXCEEDED = range(10)


_EXIT_BY_KIND = {
    "usage": 2, "unconfirmed": 2, "binary_answer": 2, "inactive": 3, "not_running": 3, "unknown_unit": 4,
    "unreachable": 5, "forbidden": 6, "timed_out": 7, "conflict": 8, "survivors": 8,
}  # fmt: skip
PROBLEM_PREFIX = "urn:px:problem:"


class Failure(Exception):
    """An outcome to report and to exit with, by default with the exit code of its kind.

    `action`: what was being done ("run tool:x"); None: the command says it; "": the detail says it all. `extra`: more
    members of its document.
    """

    action: str | None = None

    def __init__(
        self,
        detail: str,
        *,
        kind: str = "failed",
        hint: str | None = None,
        exit_code: int | None = None,
        unit: str | None = None,
        status: int | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.detail, self.kind, self.hint, self.unit, self.status, self.extra = detail, kind, hint, unit, status, extra
        self.exit_code = _EXIT_BY_KIND.get(kind, Exit.FAILED) if exit_code is None else exit_code

    def document(self) -> Document:
        title = self.kind.replace("_", " ").capitalize()
        head = {"type": PROBLEM_PREFIX + self.kind, "title": title, "status": self.status, "kind": self.kind}
        rest = {"detail": self.detail, "hint": self.hint, "unit": self.unit, "exit_code": self.exit_code}
        return {**head, **rest, **self.extra}


class Unreachable(Failure):
    """No daemon answers at the socket."""

    def __init__(self, path: str, why: str) -> None:
        detail, hint = f"no daemon answers at {path}: {why}", "pxctl daemon start"
        super().__init__(detail, kind="unreachable", hint=hint, socket=path)


class Interrupted(Failure):
    """The connection was lost after the request went out: whether it happened is unknown; asking again is safe."""

    def __init__(self, why: str) -> None:
        detail, hint = f"the connection to the daemon was lost: {why}", "run the same command again"
        super().__init__(detail, kind="interrupted", hint=hint, retryable=True)


def usage(detail: str, hint: str | None = None) -> Failure:
    """Return the failure of a call that cannot be meant so; without a hint it is the help of the command."""
    return Failure(detail, kind="usage", hint=hint)


def problem(status: int, members: Document) -> Failure:
    usual = {"kind": "failed", "exit_code": Exit.FAILED, "status": status}
    found: Document = usual | {name: value for name, value in members.items() if value is not None}
    return Failure(str(found.pop("detail", f"the daemon answered {status}")), **found)


def raise_problem(event: Document) -> None:
    if str(event.get("type", "")).startswith(PROBLEM_PREFIX):
        raise problem(500, event)
