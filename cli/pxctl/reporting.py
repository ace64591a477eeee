"""How a failure is told: a problem document on stdout under `--json`, else words on stderr (CONTRACT §3)."""

from __future__ import annotations

from pxctl import terminal
from pxctl.failure import FAILED
from pxctl.invocation import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.failure import Failure
    from pxctl.invocation import Invocation

_STDERR_LINES = 20
_STDERR_COLUMNS = 400
"""A daemon's log line, or a tool's, may be a document of its own."""


def report(invocation: Invocation, failure: Failure) -> int:
    """Say how it failed: a problem document on stdout with `--json`, else words on stderr. Returns the exit code."""
    if invocation.json:
        terminal.write(json_text(failure.document()) + "\n")
        return failure.exit_code or FAILED
    action = failure.action or invocation.action
    what = f"cannot {action}: {failure.detail}" if action and failure.kind != "usage" else failure.detail
    invocation.warn(invocation.err_paint("pxctl:", "red") + f" {what}".replace("\n", "\n  "))
    for line in _particulars(failure.document()):
        invocation.warn(f"  {line}")
    if failure.hint:
        invocation.warn(invocation.err_paint("hint:", "bold") + f" {failure.hint}")
    return failure.exit_code or FAILED


def _particulars(document: dict[str, Any]) -> list[str]:
    """Return the lines under an error: what did not fit, what is meant perhaps, what survived, what was printed."""
    lines = []
    for error in _listed(document.get("errors")):
        message = str(error.get("message") or error.get("detail") or "")
        if error.get("file") and message and message in str(document.get("detail")):
            continue
        where = error.get("pointer") or error.get("file") or ""
        lines.append(f"{where or '(the whole input)'}: {message}")
    candidates = document.get("candidates")
    if isinstance(candidates, list):
        lines += [f"candidate: {candidate}" for candidate in candidates]
    for survivor in _listed(document.get("survivors")):
        lines.append(f"survived: pid {survivor.get('pid')} ({survivor.get('name', '?')})")
    tail = document.get("stderr_tail") or document.get("stderr")
    if isinstance(tail, str) and tail.strip():
        lines += [f"stderr: {_clipped(line)}" for line in tail.rstrip().splitlines()[-_STDERR_LINES:]]
    return lines


def _clipped(line: str) -> str:
    return line if len(line) <= _STDERR_COLUMNS else line[: _STDERR_COLUMNS - 1] + "…"


def _listed(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
