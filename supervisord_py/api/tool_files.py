"""`/api/tools/…` about a tool's files: new, add, sync, remove, validate, debug. Whatever may block runs in a thread."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from supervisord_py.api.call import json_answer
from supervisord_py.api.negotiation import NDJSON
from supervisord_py.api.streams import ndjson_line, open_stream
from supervisord_py.api.tools import full_tool_document, tool_name
from supervisord_py.errors import BadRequestError, ConflictError, PxError, TimedOutError
from supervisord_py.process import program
from supervisord_py.process.model import Reason
from supervisord_py.tools.debug import diagnose
from supervisord_py.tools.install import EXAMPLE, RemovalScope, Template, add_tool, new_tool, remove_tool
from supervisord_py.tools.sync import Builder
from supervisord_py.tools.validate import validate_tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aiohttp import web

    from supervisord_py.api.call import Call

_CREATED = 201


async def new(call: Call) -> web.StreamResponse:
    """Write a working tool to start from."""
    body = await _members(call, ("name", "template"))
    template = body.get("template") or Template.STDLIB.value
    if template not in set(Template):
        raise BadRequestError(f"There is no template {template[:80]!r}.", hint=f"one of {', '.join(Template)}")
    if "name" not in body:
        raise BadRequestError("The new tool has no name.", hint='send {"name": "my-tool"}')
    tools_dir = call.context.config.tools_dir
    folder = await asyncio.to_thread(new_tool, tools_dir, body["name"], Template(template))
    return json_answer(_tool(call, folder.name), status=_CREATED)


async def add(call: Call) -> web.StreamResponse:
    """Copy a tool, or an example of the package, into the tools directory; compile what comes along uncompiled."""
    body = await _members(call, ("source", "name"))
    source = body.get("source", "")
    if not source.startswith(EXAMPLE) and not source.startswith(("/", "~")):
        raise BadRequestError(
            f"The source {source[:200]!r} is neither an absolute path nor {EXAMPLE}NAME.",
            hint="the daemon has another working directory: send the absolute path",
        )
    config = call.context.config
    added = await asyncio.to_thread(
        add_tool,
        source,
        config.tools_dir,
        examples_dir=config.examples_dir,
        name=body.get("name"),
        defaults=call.context.tools.defaults,
    )
    if added.needs_compile:
        await _builder(call).compile_bytecode(added.spec)
    return json_answer({**_tool(call, added.spec.name), "needs_sync": added.needs_sync}, status=_CREATED)


async def remove(call: Call) -> web.StreamResponse:
    """Delete a tool's folder. One that runs is refused unless `force` stops it first.

    Raises:
        ConflictError: It runs, or its folder lies outside the tools directory.
    """
    name, force = tool_name(call), call.arguments.flag("force")
    call.context.catalog.entry(name)
    state = call.states().get(f"tool:{name}")
    if state is not None and state.pid is not None:
        if not force:
            raise ConflictError(
                f"tool:{name} is {state.state}; a tool that runs is not removed.",
                hint=f"pxctl stop {name} first, or pxctl tools remove --force {name}",
                unit=f"tool:{name}",
            )
        await call.context.launcher.stop(name, Reason.STOPPED)
    scope = RemovalScope.ANYWHERE if force else RemovalScope.OWN
    folder = await asyncio.to_thread(remove_tool, call.context.catalog, name, call.context.config.tools_dir, scope)
    await call.context.launcher.refresh()
    return json_answer({"schema": "px.removed/1", "unit": f"tool:{name}", "name": name, "folder": str(folder)})


async def sync(call: Call) -> web.StreamResponse:
    """Build the tool's `.venv`; lines of progress, and last a line with `done`, or the problem document.

    What fails before the first line is an error with its own status. A client that goes away ends the build.
    """
    name = tool_name(call)
    spec = call.context.catalog.get(name)
    limit = call.context.tools.sync_timeout_seconds
    async with aclosing(_builder(call).sync(spec)) as progress:
        first = await anext(progress, None)
        response = await open_stream(call, NDJSON)
        try:
            async with asyncio.timeout(limit):
                await _report(response, first, progress)
        except TimeoutError:
            late = TimedOutError(f"The build of tool:{name} took longer than {limit:g} s.", unit=f"tool:{name}")
            await response.write(ndjson_line(late.problem()))
        except PxError as error:
            await response.write(ndjson_line(error.problem()))
        else:
            await call.context.launcher.refresh()
            await response.write(ndjson_line({"schema": "px.sync/1", "done": True, "unit": f"tool:{name}"}))
        await response.write_eof()
    return response


async def validate(call: Call) -> web.StreamResponse:
    """Run the twelve checks on a tool, on an instance of its own beside the warm one."""
    name = tool_name(call)
    folder = call.context.catalog.entry(name).folder
    return json_answer(await validate_tool(call.context.launcher, folder, datetime.now(UTC)))


async def debug(call: Call) -> web.StreamResponse:
    """Walk the failure table (CONTRACT §8): which case it is, by what evidence, and the next step."""
    return json_answer(await diagnose(call.context.launcher, call.context.ledger, tool_name(call)))


async def _report(response: web.StreamResponse, first: str | None, progress: AsyncGenerator[str, None]) -> None:
    if first is not None:
        await response.write(ndjson_line({"progress": first}))
    async for line in progress:
        await response.write(ndjson_line({"progress": line}))


def _builder(call: Call) -> Builder:
    run = partial(program.run, call.context.placement)
    return Builder(run, os.environ, call.context.tools.defaults, shutil.which("uv"))


def _tool(call: Call, name: str) -> dict[str, Any]:
    call.context.catalog.refresh()
    return {"schema": "px.tool/1", **full_tool_document(call, name)}


async def _members(call: Call, known: Sequence[str]) -> dict[str, str]:
    """Return the members of the body; all are texts, null is the same as absent.

    Raises:
        BadRequestError: There is a member too many, or one of another type.
    """
    body = {member: value for member, value in (await call.body()).items() if value is not None}
    for member, value in body.items():
        if member not in known:
            raise BadRequestError(f"The body has no use for {member[:80]!r}.", hint=f"known: {', '.join(known)}")
        if not isinstance(value, str):
            raise BadRequestError(f"{member!r} must be a text.", hint=f'for example {{"{member}": "my-tool"}}')
    return body
