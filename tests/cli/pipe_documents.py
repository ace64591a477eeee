"""Documents of pipes and executions as the daemon sends them, and its raw pages."""

from __future__ import annotations

from typing import Any

from cli.fake_daemon import Request, document, reply

LONG_AGO = "2026-01-01T00:00:00.000Z"


def pipe(name: str = "digest", **members: Any) -> dict[str, Any]:
    known = {
        "schema": "px.pipe/1", "name": name, "state": "idle", "enabled": True, "schedule": "every 2h", "next_run": None,
        "last_run": None, "last_status": None, "running": None, "queued": 0, "consecutive_failures": 0,
        "config_error": None, "unit": f"pipe:{name}", "warnings": [], "folder": f"/p/{name}",
    }  # fmt: skip
    return known | members


def execution(number: int = 12, status: str = "completed", **members: Any) -> dict[str, Any]:
    known = {
        "schema": "px.execution/1", "id": number, "pipe_name": "digest", "status": status, "trigger": "manual",
        "position": None, "queued_at": LONG_AGO, "started_at": LONG_AGO, "finished_at": None, "duration_ms": None,
        "error_type": None, "error_message": None, "pid": 7, "agent": "command", "retry_of": None, "tokens": None,
        "cost": None,
    }  # fmt: skip
    if status not in {"queued", "running"}:
        known |= {"finished_at": LONG_AGO, "duration_ms": 3200}
    return known | members


def listed(*executions: dict[str, Any], cursor: int | None = None) -> bytes:
    return document({"schema": "px.executions/1", "executions": list(executions), "next_cursor": cursor})


def paged(streams: dict[str, bytes], *, complete: bool = True, lost: int = 0) -> Any:
    """Return an answer that gives pieces of streams as they are asked for; so many bytes of each were not kept."""

    def serve(request: Request, connection: Any) -> None:
        whole = streams[request.arguments.get("stream", "stdout")]
        offset, limit = (int(request.arguments[name]) for name in ("offset", "limit"))
        page = whole[offset : offset + limit]
        is_end = complete and not lost and offset + len(page) == len(whole)
        more = f"X-Total-Bytes: {len(whole) + lost}\r\nX-Complete: {'true' if is_end else 'false'}\r\n"
        if lost:
            more += "X-Truncated: true\r\n"
        connection.sendall(reply(page, content_type="application/octet-stream", more=more))

    return serve


def started(it: dict[str, Any]) -> dict[str, Any]:
    return {"event": "start", "execution": it}


def output(text: str, offset: int = 0, stream: str = "stdout", **more: Any) -> dict[str, Any]:
    end = offset + len(text.encode())
    return {"event": "output", "stream": stream, "offset": offset, "end": end, "text": text, **more}


def done(it: dict[str, Any]) -> dict[str, Any]:
    return {"event": "done", "execution": it}
