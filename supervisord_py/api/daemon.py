"""`/api/daemon…`, `/api/config`: the daemon itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.api.context import RestartScope
from supervisord_py.api.status import daemon_document
from supervisord_py.api.streams import json_answer

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.context import Call
    from supervisord_py.api.schemas import AllQuery

_ACCEPTED = 202


async def show_daemon(call: Call) -> web.StreamResponse:
    """Answer with the daemon object."""
    return json_answer({"schema": "px.daemon/1", **daemon_document(call)})


async def reload(call: Call) -> web.StreamResponse:
    """Read settings and tools again; what is broken is refused and the old settings stay."""
    report = await call.context.control.reload()
    of_files = [one for found in (await call.context.pipes.file_problems()).values() for one in found]
    return json_answer(
        {
            "schema": "px.reload/1",
            "changed": report.changed,
            "needs_restart": report.needs_restart,
            "warnings": [*report.warnings, *of_files],
        }
    )


async def restart(call: Call, query: AllQuery) -> web.StreamResponse:
    """Replace the control plane, or with `all` stop everything and begin anew."""
    scope = RestartScope.ALL if query.all else RestartScope.CONTROL
    await call.context.control.restart(scope)
    return json_answer({"schema": "px.daemon-wish/1", "wish": "restart", "scope": scope}, status=_ACCEPTED)


async def stop(call: Call) -> web.StreamResponse:
    """Begin the orderly stop of everything."""
    await call.context.control.stop()
    return json_answer({"schema": "px.daemon-wish/1", "wish": "stop", "scope": "all"}, status=_ACCEPTED)


async def show_config(call: Call) -> web.StreamResponse:
    """Answer with every effective setting and where it came from."""
    return json_answer({"schema": "px.config/1", "settings": call.context.control.settings()})
