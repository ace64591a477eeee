"""The status document (CONTRACT §3): everything held and everything that could be, derived when asked."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import psutil

from supervisord_py.api.call import json_answer
from supervisord_py.api.pipe_documents import health_document
from supervisord_py.api.pipe_units import PipeState, pipe_unit_document
from supervisord_py.api.times import rfc3339
from supervisord_py.errors import PxError
from supervisord_py.kernels.session import SessionView

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.process.model import TreeStat
    from supervisord_py.tools.catalog import Entry
    from supervisord_py.tools.service import ToolState


async def health(call: Call) -> web.StreamResponse:
    """Answer that the API serves, and what works only in part."""
    facts = call.context.control.facts()
    degraded = [{"part": one["part"], "detail": one["detail"]} for one in degraded_parts(call)]
    pipes = call.context.pipes.health()
    if pipes.scheduler_error is not None:
        degraded.append({"part": "scheduler", "detail": f"was restarted: {pipes.scheduler_error}"})
    return json_answer(
        {
            "schema": "px.health/1",
            "ok": True,
            "version": facts.version,
            "daemon_id": facts.daemon_id,
            "degraded": degraded,
            "pipes": health_document(pipes),
        }
    )


async def status(call: Call) -> web.StreamResponse:
    """Answer with the daemon and the units asked for; when none was named, all but kernels that are only remembered."""
    wanted = call.named_units("unit")
    units = await unit_documents(call, wanted)
    return json_answer({"schema": "px.status/1", "daemon": daemon_document(call), "units": units})


async def list_units(call: Call) -> web.StreamResponse:
    """Answer with the units that names and globs mean."""
    wanted = call.named_units("name")
    states = call.unit_states()
    units = [
        {
            "unit": unit,
            "kind": unit.partition(":")[0],
            "name": unit.partition(":")[2],
            "state": str(states[unit].state) if unit in states else "cold",
        }
        for unit in wanted
    ]
    return json_answer({"schema": "px.units/1", "units": units})


def daemon_document(call: Call) -> dict[str, Any]:
    """Return the `daemon` object: keeper, control plane, and the rungs of the ladders in use."""
    facts, caps = call.context.control.facts(), call.context.placement.caps
    return {
        "version": facts.version,
        "daemon_id": facts.daemon_id,
        "socket": facts.socket,
        "system": facts.system,
        "stopping": call.context.control.stopping,
        "keeper": {
            "pid": caps.keeper_pid,
            "started_at": rfc3339(caps.keeper_started_at),
            "rss_bytes": resident_bytes(caps.keeper_pid),
        },
        "control": {
            "pid": facts.control_pid,
            "started_at": rfc3339(facts.control_started_at),
            "restarts": caps.control_restarts,
            "rss_bytes": resident_bytes(facts.control_pid),
        },
        "kill_rung": caps.kill_rung,
        "memory_rung": caps.memory_rung,
        "interrupted": [
            {"instance": one.instance, "unit": one.unit, "pid": one.pid} for one in call.context.interrupted
        ],
        "degraded": degraded_parts(call),
    }


def degraded_parts(call: Call) -> list[dict[str, str]]:
    """Return what works only in part: `{part, detail, repair}` each."""
    told = [
        {"part": one.part, "detail": one.detail, "repair": one.repair} for one in call.context.control.degradations()
    ]
    refused = [
        {
            "part": f"output of {unit}",
            "detail": f"the disk refuses it, and its agent waits: {why}",
            "repair": "df -h, then free some space",
        }
        for unit, why in call.context.pipes.refused_output().items()
    ]
    return told + refused


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of one process; None when it cannot be read."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return None


async def unit_documents(call: Call, wanted: Collection[str]) -> list[dict[str, Any]]:
    """Return the objects of the wanted units, in their order."""
    entries, tools = call.entries(), call.states()
    others: dict[str, SessionView | PipeState] = {**call.sessions(), **call.pipes()}
    known_instances = [*(one.instance for one in tools.values()), *(one.instance for one in others.values())]
    instances = [one for one in known_instances if one is not None]
    stats = await measure(call, instances)
    now = time.monotonic()
    call.live.cpu.keep_only(instances)
    documents = []
    for unit in wanted:
        known = others.get(unit) or tools.get(unit)
        match others.get(unit):
            case SessionView() as session:
                document = _kernel_document(session)
            case PipeState() as pipe:
                document = pipe_unit_document(pipe)
            case None:
                document = _unit_document(unit, tools.get(unit), entries.get(unit))
        instance = None if known is None else known.instance
        if instance is not None and instance in stats:
            measured = stats[instance]
            document["rss_bytes"] = measured.rss_bytes
            document["processes"] = measured.processes
            document["cpu_percent"] = call.live.cpu.percent(instance, measured.cpu_seconds, now)
        documents.append(document)
    return documents


async def measure(call: Call, instances: list[str]) -> Mapping[str, TreeStat]:
    """Measure the trees; without the keeper there is nothing to measure, and status must still answer."""
    if not instances:
        return {}
    try:
        return await call.context.placement.stat(instances)
    except PxError:
        return {}


def _unit_document(unit: str, state: ToolState | None, entry: Entry | None) -> dict[str, Any]:
    kind, _, name = unit.partition(":")
    started = None if state is None else state.started_at
    document: dict[str, Any] = {
        "unit": unit,
        "kind": kind,
        "name": name,
        "state": "cold" if state is None else str(state.state),
        "reason": None if state is None or state.reason is None else str(state.reason),
        "pid": None if state is None else state.pid,
        "started_at": rfc3339(started),
        "uptime_seconds": None if started is None else round(max(0.0, time.time() - started), 3),
        "rss_bytes": None,
        "cpu_percent": None,
        "last_used": None if state is None else rfc3339(state.last_used),
        "in_flight": 0 if state is None else state.in_flight,
        "pinned": False if state is None else bool(state.pinned),
        "start_method": None if state is None else state.start_method,
        "restarts": 0 if state is None else state.restarts,
        "next_run": None,
        "config_error": config_error(entry),
    }
    extra = {
        "port": None if state is None else state.port,
        "instance": None if state is None else state.instance,
        "waiting": 0 if state is None else state.waiting,
        "processes": None,
        "cold_start_ms": None if state is None else state.cold_start_ms,
        "failure": None if state is None else state.failure,
        "survivors": [] if state is None else list(state.survivors),
        "warnings": _warnings(state, entry),
        "config_problem": None if entry is None or entry.error is None else entry.error.problem(),
    }
    return {**document, **extra}


def _kernel_document(view: SessionView) -> dict[str, Any]:
    """Return the object of a kernel: the members of every unit, and its own."""
    started = view.started_at
    document: dict[str, Any] = {
        "unit": view.unit,
        "kind": "kernel",
        "name": view.id,
        "state": view.state.value,
        "reason": None if view.reason is None else view.reason.value,
        "pid": view.pid,
        "started_at": rfc3339(started),
        "uptime_seconds": None if started is None else round(max(0.0, time.time() - started), 3),
        "rss_bytes": view.rss_bytes,
        "cpu_percent": None,
        "last_used": rfc3339(view.last_used),
        "in_flight": int(view.running is not None),
        "pinned": False,
        "start_method": view.start_method,
        "restarts": view.restarts,
        "next_run": None,
        "config_error": None,
    }
    return {**document, **_kernels_own(view)}


def _kernels_own(view: SessionView) -> dict[str, Any]:
    return {
        "port": None,
        "instance": view.instance,
        "waiting": view.queued,
        "processes": None,
        "cold_start_ms": view.cold_start_ms,
        "failure": view.failure,
        "survivors": [],
        "warnings": list(view.notices),
        "config_problem": None,
        "session": view.key.name,
        "cwd": view.key.cwd,
        "interpreter": view.key.interpreter,
        "backend": view.key.backend.value,
        "running": view.running,
    }


def _warnings(state: ToolState | None, entry: Entry | None) -> list[str]:
    if state is not None:
        return list(state.warnings)
    return [] if entry is None else list(entry.warnings)


def config_error(entry: Entry | None) -> str | None:
    """Return what is wrong with a tool's files, with file, line and JSON pointer; None when nothing is."""
    return None if entry is None or entry.error is None else entry.error.detail
