"""`GET /api/metrics`: what Prometheus may scrape, and the counting that needs to see events as they happen."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from aiohttp import web

from supervisord_py.api.negotiation import PROMETHEUS
from supervisord_py.api.pipe_metrics import count_execution, pipe_families
from supervisord_py.api.prometheus import Family, Sample, Type, exposition
from supervisord_py.api.status import resident_bytes
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger.events import Event
from supervisord_py.process.events import EventGap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.api.call import Call, Live
    from supervisord_py.api.counts import UnitCounts
    from supervisord_py.process.events import EventStream

_STATES = ("cold", "starting", "ready", "busy", "stopping", "failed")


async def metrics(call: Call) -> web.StreamResponse:
    """Answer with the page."""
    return web.Response(body=exposition(_families(call)).encode(), headers={"Content-Type": PROMETHEUS})


async def watch_events(events: EventStream, live: Live) -> None:
    """Count what happens, until cancelled."""
    with closing(events.subscribe()) as subscription:
        async for item in subscription:
            unit = (item.unit or "") if isinstance(item, Event) else ""
            if isinstance(item, Event) and unit.startswith("pipe:"):
                count_execution(item, live.pipes)
            else:
                count_event(item, live.kernels if unit.startswith("kernel:") else live.tools)


def count_event(item: Event | EventGap, counts: UnitCounts) -> None:
    """Count one event."""
    match item:
        case EventGap(missed=missed):
            counts.events_missed += missed
        case Event(event="ready", facts=facts):
            counts.starts += 1
            milliseconds = facts.get("cold_start_ms")
            if isinstance(milliseconds, int | float):
                counts.cold_starts.observe(milliseconds / 1000)
        case Event(event="stopped" | "died", reason=str(reason)):
            counts.endings[reason] += 1
        case Event(event="start_failed", reason=reason):
            counts.start_failures[reason or "unknown"] += 1
        case _:
            pass


def _families(call: Call) -> Iterator[Family]:
    yield from _of_the_daemon(call)
    yield from _of_the_tools(call)
    yield from _of_the_kernels(call)
    yield from pipe_families(call.context.pipes, call.live.pipes)
    answered = [
        Sample(count, {"route": route, "status": str(status)})
        for (route, status), count in sorted(call.live.requests.answered.items())
    ]
    yield Family("pxd_http_requests_total", Type.COUNTER, "Requests answered, by route and status.", answered)


def _of_the_daemon(call: Call) -> Iterator[Family]:
    context = call.context
    caps, facts = context.placement.caps, context.control.facts()
    degraded = float(context.ledger.degraded is not None)
    yield Family(
        "pxd_up", Type.GAUGE, "1 while the API serves and takes work.", [Sample(float(not context.control.stopping))]
    )
    yield Family("pxd_info", Type.GAUGE, "Version and rungs, always 1.", [Sample(1, _info(call))])
    yield Family(
        "pxd_control_restarts_total", Type.COUNTER, "Restarts of the control plane.", [Sample(caps.control_restarts)]
    )
    memory = [
        Sample(rss, {"process": name})
        for name, rss in (
            ("keeper", resident_bytes(caps.keeper_pid)),
            ("control", resident_bytes(facts.control_pid)),
        )
        if rss is not None
    ]
    yield Family("pxd_resident_bytes", Type.GAUGE, "Resident memory of the daemon's own processes.", memory)
    yield Family("pxd_keeper_start_time_seconds", Type.GAUGE, "Unix time.", [Sample(caps.keeper_started_at)])
    yield Family("pxd_ledger_degraded", Type.GAUGE, "1 while the ledger cannot write.", [Sample(degraded)])


def _info(call: Call) -> dict[str, str]:
    caps = call.context.placement.caps
    version = call.context.control.facts().version
    return {"version": version, "kill_rung": caps.kill_rung, "memory_rung": caps.memory_rung}


def _of_the_tools(call: Call) -> Iterator[Family]:
    states = call.context.launcher.snapshot(None)
    counts = call.live.tools
    known = {state.name for state in states}
    by_state = Counter(str(state.state) for state in states)
    by_state["cold"] += sum(entry.name not in known for entry in call.context.catalog.entries())
    cold = counts.cold_starts.samples()
    endings = [Sample(count, {"reason": reason}) for reason, count in sorted(counts.endings.items())]
    evictions = [Sample(counts.endings.get(reason, 0), {"reason": reason}) for reason in ("evicted_lru", "evicted_ttl")]
    yield Family(
        "pxd_tools", Type.GAUGE, "Tools by state.", [Sample(by_state[word], {"state": word}) for word in _STATES]
    )
    yield Family("pxd_in_flight", Type.GAUGE, "Runs under way.", [Sample(sum(one.in_flight for one in states))])
    yield Family("pxd_waiting", Type.GAUGE, "Runs waiting in line.", [Sample(sum(one.waiting for one in states))])
    yield Family("pxd_starts_total", Type.COUNTER, "Instances that became ready.", [Sample(counts.starts)])
    failures = [Sample(count, {"reason": reason}) for reason, count in sorted(counts.start_failures.items())]
    yield Family("pxd_start_failures_total", Type.COUNTER, "Starts that failed, by reason.", failures)
    yield Family("pxd_cold_start_seconds", Type.HISTOGRAM, "From the spawn to ready.", cold)
    yield Family("pxd_evictions_total", Type.COUNTER, "Idle instances stopped for room or age.", evictions)
    yield Family("pxd_endings_total", Type.COUNTER, "Instances that ended, by reason.", endings)


def _of_the_kernels(call: Call) -> Iterator[Family]:
    sessions = call.context.kernels.snapshot()
    counts = call.live.kernels
    by_state = Counter(view.state for view in sessions)
    endings = [Sample(count, {"reason": reason}) for reason, count in sorted(counts.endings.items())]
    failures = [Sample(count, {"reason": reason}) for reason, count in sorted(counts.start_failures.items())]
    cold = counts.cold_starts.samples()
    states = [Sample(by_state[state], {"state": state.value}) for state in SessionState]
    yield Family("pxd_kernels", Type.GAUGE, "Sessions of kernels by state.", states)
    waiting = [Sample(sum(view.queued for view in sessions))]
    yield Family("pxd_kernel_calls_waiting", Type.GAUGE, "Calls waiting for their session.", waiting)
    yield Family("pxd_kernel_starts_total", Type.COUNTER, "Kernels that became ready.", [Sample(counts.starts)])
    yield Family("pxd_kernel_start_failures_total", Type.COUNTER, "Kernel starts that failed, by reason.", failures)
    yield Family("pxd_kernel_cold_start_seconds", Type.HISTOGRAM, "From the spawn of a kernel to ready.", cold)
    yield Family("pxd_kernel_endings_total", Type.COUNTER, "Kernels that ended, by reason.", endings)
