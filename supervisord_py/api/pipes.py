"""`/api/pipes…` and `/api/events/{name}`: what pipes there are, what becomes of them, and what starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.api.executions import execution_document, pipe_name, whole_document
from supervisord_py.api.schemas import refuse
from supervisord_py.api.streams import json_answer, pick, rfc3339
from supervisord_py.pipes.models import PublishedEvent

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.context import Call
    from supervisord_py.api.schemas import (
        AddPipe,
        EnablePipe,
        FinalQuery,
        Happening,
        NewPipe,
        NextQuery,
        PipeQuery,
        PreviewSchedule,
        RunPipe,
    )
    from supervisord_py.pipes.models import Decision, PipeView

DEFAULT_NEXT = 5
_CREATED, _ACCEPTED = 201, 202


def pipe_document(view: PipeView) -> dict[str, Any]:
    """Return one pipe: the members that CONTRACT names first."""
    return {
        **pick(view, "name", "enabled", "schedule", "next_run", "last_run", "last_status", "running", "queued"),
        **pick(view, "consecutive_failures", "config_error"),
        "unit": f"pipe:{view.name}",
        **pick(view, "last_success", "warnings", "title", "description", "agent", "presets", "events"),
        "last_decision": _decision(view.last_decision),
        **pick(view, "average_duration_seconds", "slower_than_schedule", "folder", "file"),
    }


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    return None if decision is None else pick(decision, "at", "text")


def _pipe_answer(view: PipeView, status: int = 200) -> web.Response:
    return json_answer({"schema": "px.pipe/1", **pipe_document(view)}, status=status)


async def list_pipes(call: Call) -> web.StreamResponse:
    """Answer with every pipe, broken ones included."""
    pipes = [pipe_document(view) for view in call.context.pipes.snapshot()]
    return json_answer({"schema": "px.pipes/1", "pipes": pipes})


async def show_pipe(call: Call, query: PipeQuery) -> web.StreamResponse:
    """Answer with one pipe, and with `rendered` the prompt that it would be run with now."""
    pipes, name = call.context.pipes, pipe_name(call)
    document: dict[str, Any] = {"schema": "px.pipe/1", **pipe_document(pipes.get(name))}
    document["body"] = getattr(pipes.definition(name), "body", None)
    if query.rendered:
        document["rendered"] = await pipes.rendered(name)
    return json_answer(document)


async def add_pipe(call: Call, body: AddPipe) -> web.StreamResponse:
    """Install a pipe from a path, an https address or an example: disabled, checked, whole or not at all."""
    return _pipe_answer(await call.context.pipes.install(body.source, name=body.name), _CREATED)


async def new_pipe(call: Call, body: NewPipe) -> web.StreamResponse:
    """Write a small pipe to start from."""
    return _pipe_answer(await call.context.pipes.scaffold(body.name), _CREATED)


async def remove_pipe(call: Call) -> web.StreamResponse:
    """Cancel what runs of it, then delete its folder."""
    name = pipe_name(call)
    await call.context.pipes.remove(name)
    return json_answer({"schema": "px.removed/1", "unit": f"pipe:{name}", "removed": True})


async def run_pipe(call: Call, query: FinalQuery, body: RunPipe) -> web.StreamResponse:
    """Queue an execution: 202 with its row, or with `wait` 200 once it is final."""
    asked = {"context": body.context, "queue": bool(body.queue), "timeout_seconds": body.timeout}
    document = await run_document(call, pipe_name(call), wait=query.wait, **asked)
    return json_answer(document, status=200 if query.wait else _ACCEPTED)


async def run_document(call: Call, name: str, *, wait: bool = False, **asked: Any) -> dict[str, Any]:
    """Queue an execution as `Pipes.run` is `asked` to; return its row, with `wait` once it is final."""
    execution = await call.context.pipes.run(name, **asked)
    if wait:
        return whole_document(await call.context.pipes.wait(execution.id))
    return {"schema": "px.execution/1", **execution_document(execution)}


async def enable(call: Call, body: EnablePipe) -> web.StreamResponse:
    """Let schedule and events start it, on this machine; with `{"enabled": false}` keep them from it."""
    change = call.context.pipes.enable if body.enabled else call.context.pipes.disable
    return _pipe_answer(await change(pipe_name(call)))


async def disable(call: Call) -> web.StreamResponse:
    """Keep schedule and events from starting it; what waits in line is cancelled."""
    return _pipe_answer(await call.context.pipes.disable(pipe_name(call)))


async def configure(call: Call, body: dict[str, Any]) -> web.StreamResponse:
    """Change keys of the front matter; `null` removes one. The body of the file is never touched."""
    if set(body) == {"config"} and isinstance(body["config"], dict):
        body = body["config"]
    if not body:
        raise refuse("", "The body names no key.", 'for example {"schedule": "every 2h"}')
    return _pipe_answer(await call.context.pipes.configure(pipe_name(call), body))


async def validate(call: Call) -> web.StreamResponse:
    """Answer with every check of one pipe: pass, warn or fail, where, and the cure."""
    name = pipe_name(call)
    checks = [
        {"verdict": it.status.value, "detail": it.message, **pick(it, "name", "hint", "line")}
        for it in await call.context.pipes.validate(name)
    ]
    ok = all(check["verdict"] != "fail" for check in checks)
    return json_answer({"schema": "px.pipe-validation/1", "pipe": name, "ok": ok, "checks": checks})


async def next_runs(call: Call, query: NextQuery) -> web.StreamResponse:
    """Answer when it is due next, and why."""
    report = call.context.pipes.next(pipe_name(call), query.count)
    upcoming = [rfc3339(each) for each in report.upcoming]
    return json_answer(
        {
            "schema": "px.next/1",
            **pick(report, "name", "enabled", "schedule", "summary", "timezone", "now", "events", "sentences"),
            "next_run": upcoming[0] if upcoming else None,
            "upcoming": upcoming,
            "last_decision": _decision(report.last_decision),
        }
    )


async def queue(call: Call) -> web.StreamResponse:
    """Answer with all lines and slots."""
    groups = [
        {
            **pick(each, "group", "slots"),
            "running": [execution_document(it) for it in each.running],
            "waiting": [execution_document(it) for it in each.waiting],
        }
        for each in call.context.pipes.queue()
    ]
    return json_answer({"schema": "px.queue/1", "groups": groups})


async def cancel_pipe(call: Call) -> web.StreamResponse:
    """Cancel what runs and waits of a pipe; answer once nothing of it is left."""
    return json_answer(await cancel_document(call, pipe_name(call)))


async def cancel_document(call: Call, name: str) -> dict[str, Any]:
    """Cancel what runs and waits of a pipe; return what that was."""
    documents = [execution_document(each) for each in await call.context.pipes.cancel_pipe(name)]
    return {"schema": "px.executions/1", "executions": documents, "next_cursor": None}


async def publish_event(call: Call, body: Happening) -> web.StreamResponse:
    """Take an event from outside: 202 with the pipes that it starts. The same `key` starts each of them once."""
    event = PublishedEvent(call.path("name"), key=body.key, facts=body.data)
    claims = await call.context.pipes.publish_event(event)
    known = pick(claims, "claimed", "suppressed")
    return json_answer({"schema": "px.event-claims/1", **known}, status=_ACCEPTED)


async def preview(call: Call, body: PreviewSchedule) -> web.StreamResponse:
    """Answer what a schedule means, and when it would be due, without any pipe."""
    document = call.context.pipes.preview(body.schedule, body.timezone, body.count or DEFAULT_NEXT)
    return json_answer({"schema": "px.schedule/1", **document})
