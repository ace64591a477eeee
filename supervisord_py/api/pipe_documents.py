"""Pipes and executions as JSON objects (CONTRACT §3). Pure: values in, plain JSON values out."""

from __future__ import annotations

import base64
import codecs
from typing import TYPE_CHECKING, Any, assert_never

from msgspec import to_builtins
from msgspec.structs import asdict

from supervisord_py.api.times import rfc3339
from supervisord_py.pipes.output import FollowDone, FollowOutput, FollowStart, FollowStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.ledger.pipe_history import ExecutionPage
    from supervisord_py.pipes.checks import Check
    from supervisord_py.pipes.models import Decision, EventClaims, NextReport, PipesHealth, PipeView, QueueView
    from supervisord_py.pipes.output import FollowItem


def pipe_document(view: PipeView) -> dict[str, Any]:
    """Return one pipe: the members that CONTRACT names first."""
    return {
        "name": view.name,
        "enabled": view.enabled,
        "schedule": view.schedule,
        "next_run": rfc3339(view.next_run),
        "last_run": rfc3339(view.last_run),
        "last_status": None if view.last_status is None else view.last_status.value,
        "running": view.running,
        "queued": view.queued,
        "consecutive_failures": view.consecutive_failures,
        "config_error": view.config_error,
        "unit": f"pipe:{view.name}",
        "last_success": rfc3339(view.last_success),
        "warnings": list(view.warnings),
        "title": view.title,
        "description": view.description,
        "agent": view.agent,
        "presets": list(view.presets),
        "events": list(view.events),
        "last_decision": _decision(view.last_decision),
        "average_duration_seconds": view.average_duration_seconds,
        "slower_than_schedule": view.slower_than_schedule,
        "folder": view.folder,
        "file": view.file,
    }


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    return None if decision is None else {"at": rfc3339(decision.at), "text": decision.text}


def execution_document(execution: Execution) -> dict[str, Any]:
    """Return one execution as lists show it: no blobs."""
    usage = execution.usage
    return {
        "id": execution.id,
        "pipe_name": execution.pipe_name,
        "status": execution.status.value,
        "trigger": execution.trigger.value,
        "position": execution.position,
        "queued_at": rfc3339(execution.queued_at),
        "started_at": rfc3339(execution.started_at),
        "finished_at": rfc3339(execution.finished_at),
        "duration_ms": execution.duration_ms,
        "exit_code": execution.exit_code,
        "error_type": None if execution.error_type is None else execution.error_type.value,
        "error_message": execution.error_message,
        "pid": execution.pid,
        "agent": execution.agent,
        "model": execution.model,
        "provider": execution.provider,
        "preset_id": execution.preset_id,
        "retry_of": execution.retry_of,
        "retry_count": execution.retry_count,
        "tokens": usage.total_tokens or None,
        "cost": usage.cost if usage.total_tokens or usage.cost else None,
        "usage": asdict(usage),
        **_circumstances(execution),
    }


def _circumstances(execution: Execution) -> dict[str, Any]:
    return {
        "group": execution.group.value,
        "queue_wait_ms": execution.queue_wait_ms,
        "not_before": rfc3339(execution.not_before),
        "signal": execution.signal,
        "trigger_event": execution.trigger_event,
        "trigger_key": execution.trigger_key,
        "context_start": rfc3339(execution.context_start),
        "context_end": rfc3339(execution.context_end),
        "timeout_seconds": execution.timeout_seconds,
        "timeout_wanted_seconds": execution.plan.wanted_seconds,
        "warnings": list(execution.plan.warnings),
        "api_port": execution.api_port,
        "output_dir": execution.output_dir,
        "incomplete": execution.incomplete,
        "session_path": execution.session_path,
        "stdout_bytes": execution.stdout_bytes,
        "stderr_bytes": execution.stderr_bytes,
        "invalid_utf8": execution.invalid_utf8,
        "truncated": execution.truncated,
        "agent_version": execution.agent_version,
        "instance": execution.instance,
    }


def whole_execution_document(execution: Execution) -> dict[str, Any]:
    """Return one execution with all that its row holds."""
    return {
        **execution_document(execution),
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "rendered_prompt": execution.rendered_prompt,
        "preset_snapshot": to_builtins(execution.preset),
        "plan": to_builtins(execution.plan),
    }


def page_document(page: ExecutionPage) -> dict[str, Any]:
    """Return a page of executions; `next_cursor` asks for the next one."""
    return {
        "schema": "px.executions/1",
        "executions": [execution_document(each) for each in page.executions],
        "next_cursor": page.next_cursor,
    }


def queue_document(view: QueueView) -> dict[str, Any]:
    """Return the lines, in order."""
    groups = [
        {
            "group": each.group.value,
            "slots": each.slots,
            "running": [execution_document(it) for it in each.running],
            "waiting": [execution_document(it) for it in each.waiting],
        }
        for each in view.groups
    ]
    return {"schema": "px.queue/1", "groups": groups}


def next_document(report: NextReport) -> dict[str, Any]:
    """Return when a pipe is due, and why."""
    return {
        "schema": "px.next/1",
        "name": report.name,
        "enabled": report.enabled,
        "schedule": report.schedule,
        "summary": report.summary,
        "timezone": report.timezone,
        "next_run": rfc3339(report.upcoming[0]) if report.upcoming else None,
        "upcoming": [rfc3339(each) for each in report.upcoming],
        "now": report.now,
        "events": list(report.events),
        "sentences": list(report.sentences),
        "last_decision": _decision(report.last_decision),
    }


def claims_document(claims: EventClaims) -> dict[str, Any]:
    """Return what became of an event."""
    return {
        "schema": "px.event-claims/1",
        "claimed": [{"pipe": each.pipe, "execution": each.execution} for each in claims.claimed],
        "suppressed": [{"pipe": each.pipe, "why": each.why} for each in claims.suppressed],
    }


def checks_document(name: str, checks: Sequence[Check]) -> dict[str, Any]:
    """Return what a validation found."""
    found = [
        {"name": it.name, "verdict": it.status.value, "detail": it.message, "hint": it.hint, "line": it.line}
        for it in checks
    ]
    ok = all(check["verdict"] != "fail" for check in found)
    return {"schema": "px.pipe-validation/1", "pipe": name, "ok": ok, "checks": found}


def health_document(health: PipesHealth) -> dict[str, Any]:
    """Return how the room is, for `/api/health`."""
    return asdict(health)


class Decoder:
    """Makes events of pieces of output: text where the bytes are UTF-8, base64 where they are not.

    A character that was cut in two between two pieces is kept until the rest of it comes.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, bytes]] = {}

    def event(self, item: FollowItem) -> dict[str, Any] | None:
        """Return the object of an item; None where there is nothing to tell yet."""
        match item:
            case FollowStart(execution=execution):
                return {"event": "start", "execution": execution_document(execution)}
            case FollowOutput(stream=stream, offset=offset, data=data):
                return self._output(stream.value, offset, data)
            case FollowStatus(execution=execution):
                return {"event": "status", "execution": execution_document(execution)}
            case FollowDone(execution=execution):
                return {"event": "done", "execution": execution_document(execution)}
        assert_never(item)

    def rest(self) -> list[dict[str, Any]]:
        """Return what is still held: the beginnings of characters that never ended."""
        held, self._held = self._held, {}
        return [_binary(stream, offset, data) for stream, (offset, data) in held.items()]

    def _output(self, stream: str, offset: int, data: bytes) -> dict[str, Any] | None:
        begin, before = self._held.pop(stream, (offset, b""))
        data = before + data
        try:
            text, used = codecs.utf_8_decode(data, "strict", False)  # its own signature
        except UnicodeDecodeError:
            return _binary(stream, begin, data)
        if used < len(data):
            self._held[stream] = (begin + used, data[used:])
        if not text:
            return None
        return {"event": "output", "stream": stream, "offset": begin, "end": begin + used, "text": text}


def _binary(stream: str, offset: int, data: bytes) -> dict[str, Any]:
    coded = base64.b64encode(data).decode("ascii")
    return {"event": "output", "stream": stream, "offset": offset, "end": offset + len(data), "base64": coded}
