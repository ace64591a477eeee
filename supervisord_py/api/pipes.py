"""`/api/pipes…` and `/api/events/{name}`: what pipes there are, what becomes of them, and what starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.api.call import json_answer
from supervisord_py.api.members import Members, refuse
from supervisord_py.api.names import is_glob, resolve_one
from supervisord_py.api.pipe_documents import (
    checks_document,
    claims_document,
    execution_document,
    next_document,
    pipe_document,
    queue_document,
    whole_execution_document,
)
from supervisord_py.pipes.models import PublishedEvent, RunRequest

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.pipes.models import PipeView

DEFAULT_NEXT = 5
MOST_NEXT = 50
"""Of the coming times that a schedule is asked for."""
_PREFIX = "pipe:"
_SHOWN = 80
_CREATED, _ACCEPTED = 201, 202
_CONFIG, _ENABLED = "config", "enabled"


def name_of(call: Call) -> str:
    """Return the pipe that `{p}` names, `pipe:x` and `x` alike; a glob must mean one."""
    name = call.path("p").removeprefix(_PREFIX)
    return resolve_one(f"{_PREFIX}{name}", call.pipes()).removeprefix(_PREFIX) if is_glob(name) else name


def _pipe_answer(view: PipeView, status: int = 200) -> web.Response:
    return json_answer({"schema": "px.pipe/1", **pipe_document(view)}, status=status)


async def _refuse_members(call: Call) -> None:
    """Refuse a body that says something, where the path says it all: who sends one means what is not done."""
    for name in await call.body_if_any():
        shown = name[:_SHOWN]
        raise refuse(f"/{shown}", f"The body has no use for {shown!r}.", "send none, or {}")


async def list_pipes(call: Call) -> web.StreamResponse:
    """Answer with every pipe, broken ones included."""
    return json_answer(
        {"schema": "px.pipes/1", "pipes": [pipe_document(view) for view in call.context.pipes.snapshot()]}
    )


async def show_pipe(call: Call) -> web.StreamResponse:
    """Answer with one pipe, and with `rendered` the prompt that it would be run with now."""
    pipes, name = call.context.pipes, name_of(call)
    document: dict[str, Any] = {"schema": "px.pipe/1", **pipe_document(pipes.get(name))}
    document["body"] = getattr(pipes.definition(name), "body", None)
    if call.arguments.flag("rendered"):
        document["rendered"] = await pipes.rendered(name)
    return json_answer(document)


async def add_pipe(call: Call) -> web.StreamResponse:
    """Install a pipe from a path, an https address or an example: disabled, checked, whole or not at all."""
    members = Members(await call.body(), ("source", "name"))
    source = members.text("source")
    if source is None:
        raise members.missing("source")
    return _pipe_answer(await call.context.pipes.install(source, name=members.text("name")), _CREATED)


async def new_pipe(call: Call) -> web.StreamResponse:
    """Write a small pipe to start from."""
    members = Members(await call.body(), ("name",))
    name = members.text("name")
    if name is None:
        raise members.missing("name")
    return _pipe_answer(await call.context.pipes.scaffold(name), _CREATED)


async def remove_pipe(call: Call) -> web.StreamResponse:
    """Cancel what runs of it, then delete its folder."""
    name = name_of(call)
    await call.context.pipes.remove(name)
    return json_answer({"schema": "px.removed/1", "unit": f"pipe:{name}", "removed": True})


async def run_pipe(call: Call) -> web.StreamResponse:
    """Queue an execution: 202 with its row, or with `wait` 200 once it is final."""
    members = Members(await call.body_if_any(), ("context", "queue", "timeout"))
    timeout = members.number("timeout")
    if timeout is not None and timeout <= 0:
        raise refuse("/timeout", "/timeout must be more than 0 seconds.", "leave it out for the pipe's own")
    request = RunRequest(members.mapping("context"), members.flag("queue"), timeout)
    execution = await call.context.pipes.run(name_of(call), request)
    if call.arguments.flag("wait"):
        done = await call.context.pipes.wait(execution.id)
        return json_answer({"schema": "px.execution/1", **whole_execution_document(done)})
    return json_answer({"schema": "px.execution/1", **execution_document(execution)}, status=_ACCEPTED)


async def enable(call: Call) -> web.StreamResponse:
    """Let schedule and events start it, on this machine; with `{"enabled": false}` keep them from it."""
    body = await call.body_if_any()
    members = Members(body, (_ENABLED,))
    if body and _ENABLED not in members:
        raise members.missing(_ENABLED)
    pipes = call.context.pipes
    change = pipes.enable if members.flag(_ENABLED) or not body else pipes.disable
    return _pipe_answer(await change(name_of(call)))


async def disable(call: Call) -> web.StreamResponse:
    """Keep schedule and events from starting it; what waits in line is cancelled."""
    await _refuse_members(call)
    return _pipe_answer(await call.context.pipes.disable(name_of(call)))


async def configure(call: Call) -> web.StreamResponse:
    """Change keys of the front matter; `null` removes one. The body of the file is never touched."""
    document = await call.body()
    if set(document) == {_CONFIG} and isinstance(document[_CONFIG], dict):
        document = document[_CONFIG]
    if not document:
        raise refuse("", "The body names no key.", 'for example {"schedule": "every 2h"}')
    return _pipe_answer(await call.context.pipes.configure(name_of(call), document))


async def validate(call: Call) -> web.StreamResponse:
    """Answer with every check of one pipe: pass, warn or fail, where, and the cure."""
    name = name_of(call)
    return json_answer(checks_document(name, await call.context.pipes.validate(name)))


async def next_runs(call: Call) -> web.StreamResponse:
    """Answer when it is due next, and why."""
    count = call.arguments.integer("count")
    return json_answer(next_document(call.context.pipes.next(name_of(call), DEFAULT_NEXT if count is None else count)))


async def queue(call: Call) -> web.StreamResponse:
    """Answer with all lines and slots."""
    return json_answer(queue_document(call.context.pipes.queue()))


async def cancel_pipe(call: Call) -> web.StreamResponse:
    """Cancel what runs and waits of a pipe; answer once nothing of it is left."""
    await _refuse_members(call)
    cancelled = await call.context.pipes.cancel_pipe(name_of(call))
    documents = [execution_document(each) for each in cancelled]
    return json_answer({"schema": "px.executions/1", "executions": documents, "next_cursor": None})


async def publish_event(call: Call) -> web.StreamResponse:
    """Take an event from outside: 202 with the pipes that it starts. The same `key` starts each of them once."""
    members = Members(await call.body_if_any(), ("key", "data"))
    event = PublishedEvent(call.path("name"), key=members.text("key"), facts=members.mapping("data"))
    return json_answer(claims_document(await call.context.pipes.publish_event(event)), status=_ACCEPTED)


async def preview(call: Call) -> web.StreamResponse:
    """Answer what a schedule means, and when it would be due, without any pipe."""
    members = Members(await call.body(), ("schedule", "timezone", "count"))
    text = members.text("schedule")
    if text is None:
        raise members.missing("schedule")
    count = members.whole("count", 1, MOST_NEXT) or DEFAULT_NEXT
    document = call.context.pipes.preview(text, members.text("timezone"), count)
    return json_answer({"schema": "px.schedule/1", **document})
