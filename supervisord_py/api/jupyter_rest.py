"""Jupyter's REST API over our kernels, in Jupyter's shapes, so that JupyterLab with `--gateway-url` joins.

Only kernels with ZMQ channels are shown: others cannot be joined. A kernel that is made here belongs to a session of
its own, with Jupyter as the owner; it obeys the same limits as all others. Errors are problem documents with the member
`message` that Jupyter's clients look for.
"""

from __future__ import annotations

import os
import secrets
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from aiohttp import web

from supervisord_py.api.schemas import JupyterKernel, read_body
from supervisord_py.api.streams import json_answer, rfc3339
from supervisord_py.errors import PxError, SurvivorsError, UnknownUnitError
from supervisord_py.kernels.session import BackendName, Owner, SessionState, StartRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.api.context import Call
    from supervisord_py.kernels.session_register import SessionView

DEFAULT_SPEC = "python3"
_DIRECTORY = "KERNEL_WORKING_DIR"
_SPEC_MEMBERS = ("argv", "display_name", "language", "env", "interrupt_mode", "metadata")
_LIVING = frozenset({SessionState.STARTING, SessionState.IDLE, SessionState.BUSY})
_STATES = {
    SessionState.STARTING: "starting",
    SessionState.IDLE: "idle",
    SessionState.BUSY: "busy",
    SessionState.STOPPING: "terminating",
}


def with_message(answer: Any) -> Any:
    """Give the problem documents of a route the member `message`."""

    @wraps(answer)
    async def told(call: Call) -> web.StreamResponse:
        try:
            answered: web.StreamResponse = await answer(call)
            return answered
        except PxError as error:
            error.extra.setdefault("message", error.detail)
            raise

    return told


def joinable(call: Call) -> list[SessionView]:
    """Return the sessions that Jupyter's clients may join."""
    return [
        view
        for view in call.context.kernels.snapshot()
        if view.state in _LIVING and view.key.backend is BackendName.DIRECT
    ]


def session_by_uuid(call: Call) -> SessionView:
    """Return the session of the path's UUID.

    Raises UnknownUnitError: there is no kernel of that id, or it does not live.
    """
    wanted = call.path("uuid")
    for view in joinable(call):
        if view.key.jupyter_id == wanted:
            return view
    raise UnknownUnitError(f"Kernel does not exist: {wanted[:80]}", hint="GET /api/kernels lists those that live")


def model(call: Call, view: SessionView) -> dict[str, Any]:
    """Return Jupyter's document of a kernel."""
    handle = call.context.kernels.handle(view.id)
    state = _STATES.get(view.state, "dead")
    if state == "idle" and handle is not None and handle.foreign_busy:
        state = "busy"
    return {
        "id": view.key.jupyter_id,
        "name": view.kernelspec or DEFAULT_SPEC,
        "last_activity": rfc3339(view.last_used or view.started_at or time.time()),
        "execution_state": state,
        "connections": call.live.channels[view.id],
    }


@with_message
async def version(call: Call) -> web.StreamResponse:
    """Answer with who serves this API."""
    return json_answer({"version": call.context.control.facts().version, "server": "pxd"})


@with_message
async def list_specs(call: Call) -> web.StreamResponse:
    """Answer with the kernelspecs."""
    specs = await call.context.kernels.specs()
    documents = {name: spec_document(name, spec) for name, spec in specs.items()}
    default = DEFAULT_SPEC if DEFAULT_SPEC in documents else next(iter(documents), None)
    return json_answer({"default": default, "kernelspecs": documents})


@with_message
async def show_spec(call: Call) -> web.StreamResponse:
    """Answer with one kernelspec."""
    name = call.path("name")
    specs = await call.context.kernels.specs()
    if name not in specs:
        raise UnknownUnitError(f"Kernel spec {name[:80]!r} not found", hint=f"known: {', '.join(sorted(specs))}")
    return json_answer(spec_document(name, specs[name]))


def spec_document(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return Jupyter's document of a kernelspec; pictures are not served."""
    wanted = {member: spec[member] for member in _SPEC_MEMBERS if member in spec}
    return {"name": name, "spec": {"argv": [], "env": {}, "metadata": {}, **wanted}, "resources": {}}


@with_message
async def list_kernels(call: Call) -> web.StreamResponse:
    """Answer with the kernels that can be joined, ours included."""
    return json_answer([model(call, view) for view in joinable(call)])


@with_message
async def begin(call: Call) -> web.StreamResponse:
    """Start a kernel in a session of its own."""
    body = read_body(JupyterKernel, await call.request.read())
    env = body.env or {}
    request = StartRequest(
        name=f"jupyter-{secrets.token_hex(4)}",
        cwd=_directory(env.get(_DIRECTORY), body.path),
        kernelspec=body.name,
        backend=BackendName.DIRECT,
        owner=Owner.JUPYTER_API,
        env=env,
    )
    view = await call.context.kernels.start(request)
    location = f"{call.request.path.rstrip('/')}/{view.key.jupyter_id}"
    answer = json_answer(model(call, view), status=201)
    answer.headers["Location"] = location
    return answer


def _directory(*wanted: str | None) -> str | None:
    """Return the first one that is an absolute folder here, or holds an absolute file; None leaves it to the room.

    Front ends send folders of their own machine, or paths below a root that we do not know: a hint, no order.
    """
    for path in wanted:
        if path and os.path.isabs(path):
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            if os.path.isdir(folder):
                return folder
    return None


@with_message
async def show_kernel(call: Call) -> web.StreamResponse:
    """Answer with one kernel."""
    return json_answer(model(call, session_by_uuid(call)))


@with_message
async def end(call: Call) -> web.StreamResponse:
    """End a kernel; 204 once nothing of it is left.

    Raises:
        SurvivorsError: Something is left; it is named.
    """
    view = session_by_uuid(call)
    survivors = await call.context.kernels.stop(view.id)
    if survivors:
        pids = ", ".join(map(str, survivors))
        raise SurvivorsError(f"{view.unit} is not gone: pid {pids} outlived the stop.", unit=view.unit)
    return web.Response(status=204)


@with_message
async def interrupt(call: Call) -> web.StreamResponse:
    """Interrupt what the kernel does, whoever asked for it."""
    view = session_by_uuid(call)
    handle = call.context.kernels.handle(view.id)
    if view.running is not None:
        await call.context.kernels.interrupt(view.id)
    elif handle is not None:
        await handle.interrupt()
    return web.Response(status=204)


@with_message
async def restart(call: Call) -> web.StreamResponse:
    """Replace the kernel; its WebSockets stay and are told."""
    view = await call.context.kernels.restart(session_by_uuid(call).id)
    return json_answer(model(call, view))
