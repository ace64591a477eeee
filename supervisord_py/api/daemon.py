"""`/api/daemon…`, `/api/config`, `/api/doctor`, `/api/openapi.json`: the daemon itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_config_path

from supervisord_py.api import checks
from supervisord_py.api.call import json_answer
from supervisord_py.api.checks import Check, Verdict
from supervisord_py.api.context import RestartScope
from supervisord_py.api.kernel_checks import check_kernels
from supervisord_py.api.pipe_checks import check_pipes
from supervisord_py.api.status import daemon_document, degraded_parts

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.call import Call

_ACCEPTED = 202
_PARTS = ("ledger", "log", "config")


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
            "changed": list(report.changed),
            "needs_restart": list(report.needs_restart),
            "warnings": [*report.warnings, *of_files],
        }
    )


async def restart(call: Call) -> web.StreamResponse:
    """Replace the control plane, or with `all` stop everything and begin anew."""
    scope = RestartScope.ALL if call.arguments.flag("all") else RestartScope.CONTROL
    await call.context.control.restart(scope)
    return json_answer({"schema": "px.daemon-wish/1", "wish": "restart", "scope": scope.value}, status=_ACCEPTED)


async def stop(call: Call) -> web.StreamResponse:
    """Begin the orderly stop of everything."""
    await call.context.control.stop()
    return json_answer({"schema": "px.daemon-wish/1", "wish": "stop", "scope": "all"}, status=_ACCEPTED)


async def show_config(call: Call) -> web.StreamResponse:
    """Answer with every effective setting and where it came from."""
    views = call.context.control.settings()
    settings = [{"key": one.key, "value": one.value, "origin": one.origin} for one in views]
    return json_answer({"schema": "px.config/1", "settings": settings})


async def doctor(call: Call) -> web.StreamResponse:
    """Answer with every check; each that is not ok names the one command that repairs it."""
    kernels = await check_kernels(call.context.kernels)
    pipes = await check_pipes(call.context.pipes)
    probed = await asyncio.to_thread(_probe, call)
    found = [*_reported(call), *_rungs(call), *_tool_files(call), *kernels, *pipes, *probed]
    documents = [
        {"name": one.name, "status": one.status.value, "detail": one.detail, "repair": one.repair} for one in found
    ]
    return json_answer({"schema": "px.doctor/1", "checks": documents})


def _reported(call: Call) -> list[Check]:
    """Return what the rooms say of themselves; a part that says nothing is well."""
    bad = [Check(one["part"], Verdict.FAIL, one["detail"], one["repair"]) for one in degraded_parts(call)]
    named = {one.name for one in bad}
    degraded = call.context.ledger.degraded
    if degraded is not None and "ledger" not in named:
        repair = f"df -h {call.context.config.state_dir}"
        bad.append(Check("ledger", Verdict.FAIL, f"the ledger cannot write: {degraded}", repair))
        named.add("ledger")
    return bad + [Check(part, Verdict.OK, "works") for part in _PARTS if part not in named]


def _rungs(call: Call) -> list[Check]:
    caps = call.context.placement.caps
    cut_off = checks.check_interrupted([one.unit for one in call.context.interrupted])
    return [checks.check_kill_rung(caps), checks.check_memory_rung(caps), cut_off]


def _tool_files(call: Call) -> list[Check]:
    """Return one finding for each broken tool, or one that says that none is."""
    entries = call.context.catalog.entries()
    broken = [
        Check(f"tool:{one.name}", Verdict.FAIL, one.error.detail, f"pxctl tools validate {one.name}")
        for one in entries
        if one.error is not None
    ]
    return broken or [Check("tools", Verdict.OK, f"{len(entries)} tools, none broken")]


def _probe(call: Call) -> list[Check]:
    """Look at files, limits and programs; blocks."""
    config, entries = call.context.config, call.context.catalog.entries()
    config_home = user_config_path()
    maybe = [checks.check_linger(config_home), *(checks.check_bytecode(one.name, one.folder) for one in entries)]
    maybe += [checks.check_dotenv(one.name, one.folder) for one in entries]
    socket = Path(call.context.control.facts().socket)
    return [
        checks.check_open_files(len(entries), sum(view.pid is not None for view in call.context.kernels.snapshot())),
        checks.check_disk(config.state_dir),
        *checks.check_modes([socket, config.run_dir, config.state_dir, config.cells_dir]),
        checks.check_uv(),
        checks.check_service_unit(Path.home(), config_home),
        *(one for one in maybe if one is not None),
    ]
