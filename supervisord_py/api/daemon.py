"""`/api/health`, `/api/daemon…`, `/api/config`, `/api/metrics`: the daemon itself."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from supervisord_py.api.context import ApiCall, ApiContext
from supervisord_py.api.streams import pick, rfc3339, uptime_seconds
from supervisord_py.api.units import all_units

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
Family = tuple[str, str, tuple[str, ...], Mapping[Any, float]]
"""Name, text, names of the labels, and the values by their labels."""


def daemon_document(call: ApiCall) -> dict[str, Any]:
    """Return the `daemon` object: keeper, control plane, and the rungs of the ladders in use."""
    control, caps = call.context.control, call.context.placement.caps
    facts = control.facts
    return {
        **pick(facts, "version", "daemon_id", "socket", "system", "tcp_address", "token_file"),
        "stopping": control.stopping,
        "keeper": _process(caps.keeper_version, caps.keeper_pid, caps.keeper_started_at),
        "control": {
            **_process(facts.version, facts.control_pid, facts.control_started_at),
            "restarts": caps.control_restarts,
        },
        **pick(caps, "kill_rung", "memory_rung", "controllers"),
        "interrupted": call.context.interrupted,
        "degraded": degraded_parts(call.context),
    }


def _process(version: str | None, pid: int, started_at: float) -> dict[str, Any]:
    times = {"started_at": rfc3339(started_at), "uptime_seconds": uptime_seconds(started_at)}
    return {"version": version, "pid": pid, **times, "rss_bytes": _resident_bytes(pid)}


def _resident_bytes(pid: int) -> int | None:
    import psutil

    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return None


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
    return {"ok": True, **pick(facts, "version", "daemon_id"), "degraded": degraded, "pipes": pipes_health}


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
    call.context.control.stop()
    return {"wish": "stop", "scope": "all"}


async def show_config(call: ApiCall) -> dict[str, Any]:
    """Answer with every effective setting and where it came from."""
    return {"settings": call.context.control.settings()}


async def metrics(call: ApiCall) -> web.StreamResponse:
    """Answer with what Prometheus may scrape."""
    from prometheus_client.exposition import generate_latest  # imported at the first scrape

    page: Any = SimpleNamespace(collect=lambda: _families(call))  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


def _families(call: ApiCall) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    context, live = call.context, call.live
    caps, facts = context.placement.caps, context.control.facts
    states: Counter[tuple[str, str]] = Counter()
    in_flight: Counter[tuple[str]] = Counter()
    waiting: Counter[tuple[str]] = Counter()
    for unit in all_units(context).values():
        states[unit.kind, str(unit.state)] += 1
        in_flight[unit.kind,] += unit.in_flight
        waiting[unit.kind,] += unit.waiting
    pids = {"keeper": caps.keeper_pid, "control": facts.control_pid}
    memory = {(name,): rss for name, pid in pids.items() if (rss := _resident_bytes(pid)) is not None}
    about = {(facts.version, caps.kill_rung, caps.memory_rung): 1}
    gauges: tuple[Family, ...] = (
        ("up", "1 while the API serves and takes work.", (), {(): not context.control.stopping}),
        ("info", "Version and rungs, always 1.", ("version", "kill_rung", "memory_rung"), about),
        ("resident_bytes", "Memory of the daemon's own processes.", ("process",), memory),
        ("ledger_degraded", "1 while the ledger cannot write.", (), {(): context.ledger.degraded is not None}),
        ("scheduler_up", "1 while schedules start pipes.", (), {(): context.pipes.health().scheduler_running}),
        ("units", "Tools, sessions of kernels, and pipes.", ("kind", "state"), states),
        ("in_flight", "Runs, cells and executions under way.", ("kind",), in_flight),
        ("waiting", "Runs, cells and executions in line.", ("kind",), waiting),
    )
    counters: tuple[Family, ...] = (
        ("control_restarts", "Restarts of the control plane.", (), {(): caps.control_restarts}),
        ("events", "What `pxctl events` tells.", ("kind", "event", "reason"), live.events),
        ("http_requests", "Requests answered.", ("route", "status"), live.requests),
    )
    for make, families in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, text, labels, rows in families:
            family: Any = make(f"pxd_{name}", text, labels=labels)
            for key, value in sorted((tuple(map(str, key)), value) for key, value in rows.items()):
                family.add_metric(key, float(value))
            yield family
    starts = SummaryMetricFamily("pxd_cold_start_seconds", "From the spawn to ready.", labels=("kind",))
    for kind, (count, seconds) in sorted(live.cold_starts.items()):
        starts.add_metric((kind,), count_value=count, sum_value=seconds)
    yield starts
