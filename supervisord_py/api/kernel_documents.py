"""Kernels, calls and cells as JSON (CONTRACT §3, §4). Pure: frozen values in, documents out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from supervisord_py.api.times import rfc3339
from supervisord_py.kernels.cell import (
    CellDone,
    CellNews,
    CellStarted,
    KernelStarting,
    Notice,
    Queued,
    RungClimbed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.kernels.cell import CallEvent, CallResult, CellError, CellResult, Step
    from supervisord_py.kernels.room_requests import InterruptReport
    from supervisord_py.kernels.session import SessionView
    from supervisord_py.ledger.kernels import KernelCellRow

CALL_SCHEMA = "px.exec/1"
_Told = Queued | KernelStarting | CellStarted | RungClimbed | CellDone | Notice


def kernel_document(view: SessionView, connection_file: Path | None = None) -> dict[str, Any]:
    """Return one session. `connection_file` is there while its kernel can be joined by Jupyter's own clients."""
    return {
        "id": view.id,
        "name": view.key.name,
        "cwd": view.key.cwd,
        "interpreter": view.key.interpreter,
        "backend": view.key.backend.value,
        "state": view.state.value,
        "pid": view.pid,
        "queued": view.queued,
        "last_used": rfc3339(view.last_used),
        "started_at": rfc3339(view.started_at),
        "start_method": view.start_method,
        "cold_start_ms": view.cold_start_ms,
        "rss_bytes": view.rss_bytes,
        "reason": None if view.reason is None else view.reason.value,
        "unit": view.unit,
        "running": view.running,
        "instance": view.instance,
        "restarts": view.restarts,
        "failure": view.failure,
        "owner": str(view.owner),
        "language": view.language,
        "kernelspec": view.kernelspec,
        "jupyter_id": view.key.jupyter_id,
        "connection_file": None if connection_file is None else str(connection_file),
        "notices": list(view.notices),
    }


def call_document(result: CallResult) -> dict[str, Any]:
    """Return the px.exec/1 document. `kernel` is the id of the session, `name` what people call it."""
    return {
        "schema": CALL_SCHEMA,
        "kernel": result.session_id,
        "name": result.session_id.rpartition("-")[0],
        "cwd": result.cwd,
        "interpreter": result.interpreter,
        "backend": result.backend.value,
        "variables": result.variables.value,
        "status": result.status.value,
        "message": result.message,
        "notices": list(result.notices),
        "timeout_seconds": result.timeout_seconds,
        "clamped": result.clamped,
        "cold_start_ms": result.cold_start_ms,
        "instance": result.instance,
        "cells": [cell_document(cell) for cell in result.cells],
    }


def cell_document(cell: CellResult) -> dict[str, Any]:
    """Return what came of one cell."""
    return {
        "id": cell.id,
        "title": cell.title,
        "status": cell.status.value,
        "text": cell.text,
        "outputs": [dict(output) for output in cell.outputs],
        "error": None if cell.error is None else error_document(cell.error),
        "truncated": cell.truncated,
        "artifact": cell.artifact,
        "total_bytes": cell.total_bytes,
        "total_lines": cell.total_lines,
        "shown_bytes": cell.shown_bytes,
        "duration": cell.duration_seconds,
        "duration_seconds": cell.duration_seconds,
        "variables": cell.variables.value,
        "execution_count": cell.execution_count,
        "steps": [step_document(step) for step in cell.steps],
        "lossy": cell.lossy,
        "notices": list(cell.notices),
    }


def history_document(row: KernelCellRow) -> dict[str, Any]:
    """Return one cell of a session's past."""
    return {
        "id": row.id,
        "title": row.title,
        "code": row.code,
        "status": row.status,
        "call": row.call,
        "ordinal": row.ordinal,
        "instance": row.instance,
        "queued_at": rfc3339(row.queued_at),
        "started_at": rfc3339(row.started_at),
        "ended_at": rfc3339(row.ended_at),
        "duration_seconds": row.duration_seconds,
        "execution_count": row.execution_count,
        "total_bytes": row.total_bytes,
        "truncated": row.truncated,
        "lossy": row.lossy,
        "error": None if row.error is None else dict(row.error),
        "variables": row.variables,
        "steps": [dict(step) for step in row.steps],
    }


def error_document(error: CellError) -> dict[str, Any]:
    """Return what a cell raised."""
    return {"name": error.name, "value": error.value, "traceback": list(error.traceback)}


def step_document(step: Step) -> dict[str, Any]:
    """Return one rung of the ladder."""
    return {"action": step.action, "after_seconds": step.after_seconds, "detail": step.detail}


def interrupt_document(report: InterruptReport) -> dict[str, Any]:
    """Return what an interrupt did."""
    steps = [step_document(step) for step in report.steps]
    return {"schema": "px.interrupt/1", "kernel": report.session_id, "running": report.running, "steps": steps}


def event_document(event: CallEvent) -> dict[str, Any] | None:
    """Return an event of a call as its followers are told it; None for news, which they find in the cell's files."""
    if isinstance(event, CellNews):
        return None
    name, members = _told(event)
    return {"event": name, **members}


def _started(event: CellStarted) -> dict[str, Any]:
    return {
        "index": event.index,
        "count": event.count,
        "id": event.id,
        "title": event.title,
        "kernel": event.session_id,
        "code": event.code,
    }


def _told(event: _Told) -> tuple[str, dict[str, Any]]:
    match event:
        case Queued(position=position):
            return "queued", {"position": position}
        case KernelStarting(session_id=session_id, interpreter=interpreter):
            return "starting", {"kernel": session_id, "interpreter": interpreter}
        case CellStarted():
            return "cell_started", _started(event)
        case RungClimbed(id=cell_id, step=step):
            return "rung", {"id": cell_id, **step_document(step)}
        case CellDone(result=result):
            return "cell_done", {"cell": cell_document(result)}
        case Notice(text=text):
            return "notice", {"text": text}
    assert_never(event)
