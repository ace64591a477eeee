"""`/api/tools…`: the catalog, runs, and the warm set."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from supervisord_py.api.call import json_answer
from supervisord_py.api.names import resolve, resolve_one
from supervisord_py.api.negotiation import NDJSON
from supervisord_py.api.status import config_error, unit_documents
from supervisord_py.api.streams import first_of, ndjson_line, open_stream
from supervisord_py.api.times import rfc3339
from supervisord_py.errors import BadRequestError, TimedOutError, UnknownUnitError
from supervisord_py.process.model import Reason
from supervisord_py.tools.proxy import forward

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.tools.catalog import Entry
    from supervisord_py.tools.service import ToolState

_ACCEPTED = 202


def tool_units(call: Call) -> list[str]:
    """Return the units of kind tool."""
    return [unit for unit in call.units() if unit.startswith("tool:")]


def tool_name(call: Call) -> str:
    """Return the one tool that `{t}` means; a plain name costs one look, not one at every tool."""
    with suppress(UnknownUnitError):
        return call.context.catalog.entry(call.path("t").removeprefix("tool:")).name
    return resolve_one(call.path("t"), tool_units(call)).removeprefix("tool:")


def tool_names(call: Call) -> list[str]:
    """Return the tools that `{t}` means; a glob may mean several."""
    return [unit.removeprefix("tool:") for unit in resolve([call.path("t")], tool_units(call))]


async def list_tools(call: Call) -> web.StreamResponse:
    """Answer with the catalog, broken tools included."""
    states = call.states()
    tools = [tool_document(entry, states.get(f"tool:{entry.name}")) for entry in call.context.catalog.entries()]
    return json_answer({"schema": "px.tools/1", "tools": tools})


async def show_tool(call: Call) -> web.StreamResponse:
    """Answer with one tool and all that its files say."""
    return json_answer({"schema": "px.tool/1", **full_tool_document(call, tool_name(call))})


def full_tool_document(call: Call, name: str) -> dict[str, Any]:
    """Return one tool with manifest, input schema and limits."""
    entry, state = call.entries().get(f"tool:{name}"), call.states().get(f"tool:{name}")
    if entry is None:
        return {"name": name, "state": "cold" if state is None else str(state.state)}
    return {**tool_document(entry, state), **_declaration(entry)}


def tool_document(entry: Entry, state: ToolState | None) -> dict[str, Any]:
    """Return one row of the catalog."""
    spec = entry.spec
    return {
        "name": entry.name,
        "unit": f"tool:{entry.name}",
        "title": entry.name if spec is None else spec.title,
        "version": None if spec is None else spec.version,
        "description": None if spec is None else spec.description,
        "dialect": None if spec is None else spec.dialect.value,
        "state": "cold" if state is None else str(state.state),
        "pinned": (spec is not None and spec.pinned) if state is None else bool(state.pinned),
        "folder": str(entry.folder),
        "config_error": config_error(entry),
        "config_problem": None if entry.error is None else entry.error.problem(),
        "warnings": list(entry.warnings if state is None else state.warnings),
    }


def _declaration(entry: Entry) -> dict[str, Any]:
    spec = entry.spec
    if spec is None:
        return {"manifest": None, "input_schema": None, "output_schema": None, "limits": None}
    return {
        "manifest": spec.manifest,
        "input_schema": spec.input_schema,
        "output_schema": spec.output_schema,
        "limits": {
            "max_memory_mb": spec.max_memory_mb,
            "memory_limit": spec.memory_limit.value,
            "max_runtime_seconds": spec.max_runtime_seconds,
            "open_files": spec.limits.open_files,
            "processes": spec.limits.processes,
            "cpu_seconds": spec.limits.cpu_seconds,
            "address_space_mb": spec.limits.address_space_mb,
            "concurrency": spec.concurrency,
        },
        "warm_keep_seconds": spec.warm_keep_seconds,
        "start_timeout_seconds": spec.start_timeout_seconds,
        "stop_timeout_seconds": spec.stop_timeout_seconds,
        "listen": spec.listen.value,
        "streams": True if spec.pixie is None else spec.pixie.streams,
    }


async def run(call: Call) -> web.StreamResponse:
    """Run a tool once; the answer is the tool's own."""
    return await _forward(call, streaming=False)


async def stream(call: Call) -> web.StreamResponse:
    """Run a tool once; its items are passed on as they come."""
    return await _forward(call, streaming=True)


async def _forward(call: Call, *, streaming: bool) -> web.StreamResponse:
    name = tool_name(call)
    try:
        return await forward(call.context.launcher, call.request, name, streaming=streaming, tee=call.copy)
    except BadRequestError as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            error.extra.update(line=error.__cause__.lineno, column=error.__cause__.colno)
        raise


async def lease(call: Call) -> web.StreamResponse:
    """Hold a warm instance for as long as the connection stays open; the first line says where it is.

    The answer ends when the instance does.
    """
    name = tool_name(call)
    timeout = call.arguments.number("timeout")
    async with call.context.launcher.lease(name, timeout_seconds=timeout) as held:
        response = await open_stream(call, NDJSON)
        document = {
            "schema": "px.lease/1",
            "unit": f"tool:{name}",
            "address": held.address,
            "port": held.port,
            "pid": held.pid,
            "instance": held.instance,
            "cold_start_ms": held.cold_start_ms,
        }
        await response.write(ndjson_line(document))
        await first_of(held.over.wait(), call.live.closing.wait())
        await response.write_eof()
    return response


async def start(call: Call) -> web.StreamResponse:
    """Warm a tool up; answer once it is ready, or with `wait=0` at once."""
    names = tool_names(call)
    for name in names:
        call.context.catalog.get(name)
    timeout = call.arguments.number("timeout")
    warming = [call.context.launcher.warm(name, timeout_seconds=timeout) for name in names]
    return await _answer_with_units(call, "px.start/1", names, _all_or_first_failure(warming))


async def stop(call: Call) -> web.StreamResponse:
    """Stop a tool; answer once nothing of it is left.

    Raises:
        SurvivorsError: Something is left; it is named.
    """
    names = tool_names(call)
    stops = [call.context.launcher.stop(name, Reason.STOPPED) for name in names]
    work = _within(call.arguments.number("timeout"), names, _all_or_first_failure(stops))
    return await _answer_with_units(call, "px.stop/1", names, work, survivors=[])


async def _answer_with_units(
    call: Call, schema: str, names: Sequence[str], work: Coroutine[Any, Any, None], **members: Any
) -> web.StreamResponse:
    """Let the work go on by itself when the client goes away or does not want to wait."""
    status = 200
    if call.arguments.flag("wait", absent=True):
        await call.live.outlive_client(work)
    else:
        call.live.detach(work)
        status = _ACCEPTED
    units = await unit_documents(call, [f"tool:{name}" for name in names])
    return json_answer({"schema": schema, "units": units, **members}, status=status)


async def _within(seconds: float | None, names: Sequence[str], work: Coroutine[Any, Any, None]) -> None:
    """Wait for a stop that goes on when the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError as error:
        named = ", ".join(f"tool:{name}" for name in names)
        raise TimedOutError(
            f"The stop of {named} took longer than {seconds:g} s; it goes on.", hint="pxctl status"
        ) from error


async def _all_or_first_failure(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Let every one come to its end, whatever becomes of the others; then raise the first failure."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def pin(call: Call) -> web.StreamResponse:
    """Exempt a tool from LRU eviction, and with `forever` from age as well."""
    name, forever = tool_name(call), call.arguments.flag("forever")
    call.context.catalog.get(name)
    await call.context.launcher.pin(name, forever=forever)
    return json_answer({"schema": "px.pin/1", "unit": f"tool:{name}", "pinned": True, "forever": forever})


async def unpin(call: Call) -> web.StreamResponse:
    """Take a pin away; also one of a tool that is not there any more."""
    name = tool_name(call)
    await call.context.launcher.unpin(name)
    return json_answer({"schema": "px.pin/1", "unit": f"tool:{name}", "pinned": False, "forever": False})


async def launcher_state(call: Call) -> web.StreamResponse:
    """Answer with the warm set: every tool that has a process."""
    warm = [state for state in call.context.launcher.snapshot(None) if state.pid is not None]
    return json_answer({state.name: warm_document(state) for state in warm})


def warm_document(state: ToolState) -> dict[str, Any]:
    """Return one member of the warm set."""
    return {
        "pid": state.pid,
        "port": state.port,
        "last_used": rfc3339(state.last_used),
        "pinned": bool(state.pinned),
        "in_flight": state.in_flight,
        "state": str(state.state),
        "started_at": rfc3339(state.started_at),
        "waiting": state.waiting,
        "start_method": state.start_method,
        "restarts": state.restarts,
        "instance": state.instance,
        "cold_start_ms": state.cold_start_ms,
    }
