"""`/api/health`, `/api/daemon…`, `/api/config`: the daemon itself."""

from __future__ import annotations

from typing import Any

from supervisord_py.api.context import ApiCall, ApiContext
from supervisord_py.api.streams import pick, rfc3339, uptime_seconds
from supervisord_py.api.units import resident_bytes


def daemon_document(call: ApiCall) -> dict[str, Any]:
    """Return the `daemon` object: keeper, control plane, and the rungs of the ladders in use."""
    facts, caps = call.context.control.facts, call.context.placement.caps
    return {
        **pick(facts, "version", "daemon_id", "socket", "system", "tcp_address", "token_file"),
        "stopping": call.context.control.stopping,
        "keeper": {
            "version": caps.keeper_version,
            "pid": caps.keeper_pid,
            "started_at": rfc3339(caps.keeper_started_at),
            "uptime_seconds": uptime_seconds(caps.keeper_started_at),
            "rss_bytes": resident_bytes(caps.keeper_pid),
        },
        "control": {
            "version": facts.version,
            "pid": facts.control_pid,
            "started_at": rfc3339(facts.control_started_at),
            "uptime_seconds": uptime_seconds(facts.control_started_at),
            "restarts": caps.control_restarts,
            "rss_bytes": resident_bytes(facts.control_pid),
        },
        **pick(caps, "kill_rung", "memory_rung", "controllers"),
        "interrupted": call.context.interrupted,
        "degraded": degraded_parts(call.context),
    }


def degraded_parts(context: ApiContext) -> list[dict[str, str]]:
    """Return what works only in part: `{part, detail, repair}` each."""
    found = [*context.control.degradations()]
    for unit, why in context.pipes.refused_output().items():
        detail = f"the disk refuses it, and its agent waits: {why}"
        found.append({"part": f"output of {unit}", "detail": detail, "repair": "df -h, then free some space"})
    return found


async def health(call: ApiCall) -> dict[str, Any]:
    """Answer that the API serves, and what works only in part."""
    facts, pipes_health = call.context.control.facts, call.context.pipes.health()
    degraded = [{"part": one["part"], "detail": one["detail"]} for one in degraded_parts(call.context)]
    if pipes_health.scheduler_error is not None:
        degraded.append({"part": "scheduler", "detail": f"was restarted: {pipes_health.scheduler_error}"})
    known = pick(facts, "version", "daemon_id")
    return {"ok": True, **known, "degraded": degraded, "pipes": pipes_health}


async def show_daemon(call: ApiCall) -> dict[str, Any]:
    """Answer with the daemon object."""
    return daemon_document(call)


async def reload(call: ApiCall) -> dict[str, Any]:
    """Read settings and tools again; what is broken is refused and the old settings stay."""
    report = await call.context.control.reload()
    of_files = [one for found in (await call.context.pipes.file_problems()).values() for one in found]
    return {**report, "warnings": [*report["warnings"], *of_files]}


async def restart(call: ApiCall, *, all: bool = False) -> dict[str, Any]:
    """Replace the control plane, or with `all` stop everything and begin anew."""
    await call.context.control.restart(everything=all)
    return {"wish": "restart", "scope": "all" if all else "control"}


async def stop(call: ApiCall) -> dict[str, Any]:
    """Begin the orderly stop of everything."""
    await call.context.control.stop()
    return {"wish": "stop", "scope": "all"}


async def show_config(call: ApiCall) -> dict[str, Any]:
    """Answer with every effective setting and where it came from."""
    return {"settings": call.context.control.settings()}
