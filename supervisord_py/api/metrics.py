"""`GET /api/metrics`: what Prometheus may scrape. prometheus_client writes the page, imported at the first scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from supervisord_py.api.context import ApiCall
from supervisord_py.api.units import all_units, resident_bytes

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
Family = tuple[str, str, tuple[str, ...], Mapping[Any, float]]
"""Name, text, names of the labels, and the values by their labels."""


async def metrics(call: ApiCall) -> web.StreamResponse:
    """Answer with the page."""
    from prometheus_client.exposition import generate_latest

    page: Any = SimpleNamespace(collect=lambda: _families(call))  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


def _families(call: ApiCall) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    context, live, units = call.context, call.live, all_units(call.context).values()
    caps, facts = context.placement.caps, context.control.facts
    states: Counter[tuple[str, str]] = Counter()
    lines: dict[str, Counter[tuple[str]]] = {"in_flight": Counter(), "waiting": Counter()}
    for unit in units:
        states[unit.kind, str(unit.state)] += 1
        lines["in_flight"][unit.kind,] += unit.in_flight
        lines["waiting"][unit.kind,] += unit.waiting
    pids = {"keeper": caps.keeper_pid, "control": facts.control_pid}
    memory = {(name,): rss for name, pid in pids.items() if (rss := resident_bytes(pid)) is not None}
    about = {(facts.version, caps.kill_rung, caps.memory_rung): 1}
    gauges: tuple[Family, ...] = (
        ("up", "1 while the API serves and takes work.", (), {(): not context.control.stopping}),
        ("info", "Version and rungs, always 1.", ("version", "kill_rung", "memory_rung"), about),
        ("resident_bytes", "Memory of the daemon's own processes.", ("process",), memory),
        ("ledger_degraded", "1 while the ledger cannot write.", (), {(): context.ledger.degraded is not None}),
        ("scheduler_up", "1 while schedules start pipes.", (), {(): context.pipes.health().scheduler_running}),
        ("units", "Tools, sessions of kernels, and pipes.", ("kind", "state"), states),
        ("in_flight", "Runs, cells and executions under way.", ("kind",), lines["in_flight"]),
        ("waiting", "Runs, cells and executions in line.", ("kind",), lines["waiting"]),
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
        starts.add_metric((kind,), count_value=int(count), sum_value=seconds)
    yield starts
