"""What a kernel's word on a cell says: its execute_reply, or the `end` record of the cell's files, as a Reply. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.backend import Reply
from supervisord_py.kernels.cell import CellError, CellStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUSES = {"ok": CellStatus.OK, "error": CellStatus.ERROR}


def reply_of_end(record: Mapping[str, Any]) -> Reply:
    """Return what an `end` record says."""
    error = record.get("error")
    return Reply(
        status=_STATUSES.get(str(record.get("status")), CellStatus.ABORTED),
        error=_error(error, "name", "value") if isinstance(error, dict) else None,
        execution_count=_count(record),
        asked_exit=record.get("ask_exit") is True,
    )


def reply_of(content: Mapping[str, Any]) -> Reply:
    """Return what the content of an execute_reply says."""
    status = _STATUSES.get(str(content.get("status")), CellStatus.ABORTED)
    return Reply(
        status=status,
        error=_error(content, "ename", "evalue") if status is CellStatus.ERROR else None,
        execution_count=_count(content),
        asked_exit=asks_exit(content),
    )


def asks_exit(content: Mapping[str, Any]) -> bool:
    """Say whether the code of an execute_reply called exit() or quit()."""
    payload = content.get("payload")
    pieces = payload if isinstance(payload, list) else []
    return any(isinstance(it, dict) and it.get("source") == "ask_exit" and not it.get("keepkernel") for it in pieces)


def _error(members: Mapping[str, Any], name: str, value: str) -> CellError:
    lines = members.get("traceback")
    traceback = tuple(str(line) for line in lines) if isinstance(lines, list) else ()
    return CellError(str(members.get(name) or "Error"), str(members.get(value) or ""), traceback)


def _count(members: Mapping[str, Any]) -> int | None:
    count = members.get("execution_count")
    return count if isinstance(count, int) else None
