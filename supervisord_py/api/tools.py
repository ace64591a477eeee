"""`/api/tools…`: the catalog, runs, the warm set, and a tool's files.

Whatever may block runs in a thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiohttp import web

from supervisord_py.api import schemas as s
from supervisord_py.api.context import ApiCall
from supervisord_py.api.streams import NDJSON, feed, frame, pick
from supervisord_py.api.units import all_units, change_unit, resolve_one
from supervisord_py.errors import BadRequestError, ConflictError, PxError, UnknownUnitError
from supervisord_py.process import program
from supervisord_py.process.model import Reason
from supervisord_py.process.pool import Pin
from supervisord_py.tools.catalog import EXAMPLE, TEMPLATE, Entry, add_tool, is_example, remove_tool
from supervisord_py.tools.environment import Builder, builds, lacks_bytecode, needs_sync
from supervisord_py.tools.manifest import VENV
from supervisord_py.tools.proxy import forward
from supervisord_py.tools.status import ToolState


def tool_name(call: ApiCall) -> str:
    """Return the one tool that `{t}` means; a plain name costs one look, not one at every tool."""
    plain = call.request.match_info["t"].removeprefix("tool:")
    try:
        return call.context.launcher.catalog.entry(plain).name
    except UnknownUnitError:
        if is_example(plain):  # that error says how to get it
            raise
    units = all_units(call.context)
    try:
        return resolve_one(
            plain, [unit for unit in units if unit.startswith("tool:")]
        ).removeprefix("tool:")
    except UnknownUnitError as error:
        if f"pipe:{plain}" in units:
            error.hint = f"pipe:{plain} is a pipe: pxctl pipe run {plain}"
        raise


async def list_tools(call: ApiCall) -> dict[str, Any]:
    """Answer with the catalog, broken tools included."""
    launcher = call.context.launcher
    entries, known = launcher.catalog.entries(), {each.name: each for each in launcher.snapshot()}
    return {
        "tools": [
            _tool_document(entry, known[entry.name]) for entry in entries if entry.name in known
        ]
    }


async def show_tool(call: ApiCall) -> dict[str, Any]:
    """Answer with one tool and all that its files say."""
    return _whole_document(call, tool_name(call))


def _whole_document(call: ApiCall, name: str) -> dict[str, Any]:
    (state,), entry = (
        call.context.launcher.snapshot(name),
        call.context.launcher.catalog.entry(name),
    )
    document, spec = _tool_document(entry, state), entry.spec
    if spec is None:
        return {
            **document,
            "manifest": None,
            "input_schema": None,
            "output_schema": None,
            "limits": None,
        }
    return {
        **document,
        "manifest": spec.manifest,
        "input_schema": spec.input,
        "output_schema": spec.output,
        "limits": pick(spec, "max_memory_mb", "memory_limit", "max_runtime_seconds", "concurrency")
        | pick(spec.limits),
        **pick(
            spec, "warm_keep_seconds", "start_timeout_seconds", "stop_timeout_seconds", "listen"
        ),
        "streams": True if spec.pixie is None else spec.pixie.streams,
    }


def _tool_document(entry: Entry, state: ToolState) -> dict[str, Any]:
    spec, error = entry.spec, entry.error
    said = {"title": entry.name, "version": None, "description": None, "dialect": None}
    return {
        **pick(state, "name", "unit", "state", "warnings", "pinned"),
        **(said if spec is None else pick(spec, *said)),
        "folder": str(entry.folder),
        "config_error": error and error.detail,
        "config_problem": error and error.problem(),
    }


async def run(
    call: ApiCall, *, timeout: s.Seconds | None = None, keep_alive: s.KeepAlive | None = None
) -> web.StreamResponse:
    """Run a tool once; the answer is the tool's own, of `/stream` its items as they come."""
    launcher, request = call.context.launcher, call.request
    try:
        spec = launcher.catalog.get(request.match_info["t"].removeprefix("tool:"))
    except UnknownUnitError:
        spec = launcher.catalog.get(tool_name(call))  # a glob may mean one
    is_streaming = request.path.endswith("/stream")
    body = await call.body()
    return await forward(
        launcher,
        request,
        spec,
        body,
        timeout,
        keep_alive,
        streaming=is_streaming,
        on_sent=call.mark_begun,
    )


async def lease(call: ApiCall, *, timeout: s.Seconds | None = None) -> web.StreamResponse:
    """Hold a warm instance for as long as the connection stays open or it lives; the first line
    says where it is.
    """
    launcher, name = call.context.launcher, tool_name(call)
    held = await launcher.acquire(launcher.catalog.get(name), timeout, None)
    instance = held.instance

    async def told() -> AsyncGenerator[bytes, None]:
        known = {
            "address": "127.0.0.1",
            "instance": instance.key,
            "cold_start_ms": held.cold_start_ms,
        }
        known |= pick(instance, "port", "pid")
        yield frame(NDJSON, {"schema": "px.lease/1", "unit": f"tool:{name}", **known})
        await instance.over.wait()

    try:
        return await feed(call, NDJSON, told(), endless=True)
    finally:
        launcher.release(held)


async def change(
    call: ApiCall, *, timeout: s.Seconds | None = None, wait: bool = True
) -> tuple[int, dict[str, Any]]:
    """Warm a tool up or stop it; answer once it is ready, or nothing of it is left, or with
    `wait=0` at once.
    """
    verb = call.request.path.rpartition("/")[2]
    document = await change_unit(call, verb, f"tool:{tool_name(call)}", timeout, wait)
    return 200 if wait else 202, document


async def pin(call: ApiCall, *, forever: bool = False) -> dict[str, Any]:
    """Exempt a tool from LRU eviction, and with `forever` from age as well."""
    name = tool_name(call)
    await call.context.launcher.pin(name, Pin.FOREVER if forever else Pin.LRU)
    return {"unit": f"tool:{name}", "pinned": True, "forever": forever}


async def unpin(call: ApiCall) -> dict[str, Any]:
    """Take a pin away, also one that the tool declares for itself."""
    name = tool_name(call)
    await call.context.launcher.pin(name, Pin.NONE)
    return {"unit": f"tool:{name}", "pinned": False, "forever": False}


async def launcher_state(call: ApiCall) -> dict[str, Any]:
    """Answer with the warm set: every tool that has a process."""
    members = (
        "pid", "port", "last_used", "pinned", "in_flight", "state", "started_at", "waiting",
        "start_method", "restarts", "instance", "cold_start_ms",
    )  # fmt: skip
    warm = [state for state in call.context.launcher.snapshot() if state.pid is not None]
    return {state.name: pick(state, *members) for state in warm}


async def new(call: ApiCall, body: s.New) -> dict[str, Any]:
    """Write a working tool to start from."""
    await asyncio.to_thread(add_tool, TEMPLATE, call.context.config.tools_dir, name=body.name)
    await _begin_anew(call, body.name)
    return _whole_document(call, body.name)


async def add(call: ApiCall, body: s.Add) -> dict[str, Any]:
    """Copy a tool, or an example of the package, into the tools directory; compile what comes
    along uncompiled.
    """
    if not body.source.startswith((EXAMPLE, "/", "~")):
        detail = f"The source {body.source[:200]!r} is neither an absolute path nor {EXAMPLE}NAME."
        raise BadRequestError(
            detail, hint="the daemon has another working directory: send the absolute path"
        )
    tools_dir, settings = call.context.config.tools_dir, call.context.launcher.config.settings
    spec = await asyncio.to_thread(
        add_tool, body.source, tools_dir, name=body.name, settings=settings
    )
    if await asyncio.to_thread(lacks_bytecode, spec.folder / VENV):
        await _builder(call).compile_bytecode(spec)
    await _begin_anew(call, spec.name)
    return {**_whole_document(call, spec.name), "needs_sync": needs_sync(spec)}


async def _begin_anew(call: ApiCall, name: str) -> None:
    """Take in a tool that was added.

    What is left of an earlier one, whose folder was deleted by hand, is dropped.
    """
    launcher = call.context.launcher
    launcher.catalog.refresh()
    if launcher.instance_of(name) is None and launcher.is_remembered(name):
        await launcher.forget(name)


async def remove(call: ApiCall, *, force: bool = False) -> dict[str, Any]:
    """Delete a tool's folder and what is remembered of it.

    One that runs is refused unless `force` stops it.
    """
    name, launcher, tools_dir = (
        tool_name(call),
        call.context.launcher,
        call.context.config.tools_dir,
    )
    launcher.catalog.entry(name)
    (state,) = launcher.snapshot(name)
    if state.pid is not None:
        if not force:
            hint = f"pxctl stop {name} first, or pxctl tools remove --force {name}"
            raise ConflictError(
                f"{state.unit} is {state.state}: it runs.", hint=hint, unit=state.unit
            )
        await launcher.stop(name, Reason.STOPPED)
    folder = await asyncio.to_thread(remove_tool, launcher.catalog, name, tools_dir, anywhere=force)
    await launcher.refresh()
    await launcher.forget(name)
    return {"unit": f"tool:{name}", "name": name, "folder": str(folder)}


async def sync(call: ApiCall) -> web.StreamResponse:
    """Build the tool's `.venv`; lines of progress, and last a line with `done`, or the problem
    document.
    """
    name = tool_name(call)
    spec = call.context.launcher.catalog.get(name)
    progress = _builder(call).sync(spec)
    first = await anext(progress, None)

    async def told() -> AsyncGenerator[bytes, None]:
        last: dict[str, Any] = {
            "schema": "px.sync/1",
            "done": True,
            "unit": f"tool:{name}",
            "built": builds(spec),
        }
        try:
            if first is not None:
                yield frame(NDJSON, {"progress": first})
            async for line in progress:
                yield frame(NDJSON, {"progress": line})
            await call.context.launcher.refresh()
        except PxError as error:
            last = error.problem()
        yield frame(NDJSON, last)

    async with aclosing(progress):
        return await feed(call, NDJSON, told())


def _builder(call: ApiCall) -> Builder:
    run_program = partial(program.run, call.context.placement)
    return Builder(
        run_program, os.environ, call.context.launcher.config.settings, shutil.which("uv")
    )


async def validate(call: ApiCall) -> dict[str, Any]:
    """Run the twelve checks on a tool, on an instance of its own beside the warm one."""
    from supervisord_py.tools.validate import validate_tool

    folder = call.context.launcher.catalog.entry(tool_name(call)).folder
    return await validate_tool(call.context.launcher, folder, datetime.now(UTC))


async def debug(call: ApiCall) -> dict[str, Any]:
    """Walk the failure table (CONTRACT §8): which case it is, by what evidence, and the next
    step.
    """
    from supervisord_py.tools.debug import diagnose

    return await diagnose(call.context.launcher, call.context.ledger, tool_name(call))
