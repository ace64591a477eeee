"""`GET /api/metrics`: what Prometheus may scrape, of the daemon and of each unit.

A unit that is down has its series as well, with 0: an alert must not fall silent because what it is
about is gone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from supervisord_py import __version__
from supervisord_py.api.context import ApiCall
from supervisord_py.api.units import Measurement, UnitView, all_units, measure
from supervisord_py.keeper import procfs
from supervisord_py.ledger.pipes import Status

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_UP = frozenset({"ready", "idle", "busy"})
_BAD_ENDS = frozenset({Status.FAILED, Status.TIMED_OUT})
_UNIT = ("kind", "unit")
Labels = tuple[str, ...]


async def metrics(call: ApiCall) -> web.StreamResponse:
    """Answer with what Prometheus may scrape."""
    from prometheus_client.exposition import generate_latest  # imported at the first scrape

    units = list(all_units(call.context).values())
    measurements = await measure(call.context, units)
    families = [*_daemon_families(call, units), *_unit_families(call, units, measurements)]
    page: Any = SimpleNamespace(collect=lambda: families)  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


def _daemon_families(call: ApiCall, units: Iterable[UnitView]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily as Counted
    from prometheus_client.core import GaugeMetricFamily as Gauge

    context, live = call.context, call.live
    caps = context.placement.caps
    states: Counter[Labels] = Counter()
    in_flight: Counter[Labels] = Counter()
    waiting: Counter[Labels] = Counter()
    for unit in units:
        states[unit.kind, str(unit.state)] += 1
        in_flight[unit.kind,] += unit.in_flight
        waiting[unit.kind,] += unit.waiting
    pids = {"keeper": caps.keeper_pid, "control": os.getpid()}
    memory: dict[Labels, float] = {(name,): procfs.resident(pid) for name, pid in pids.items()}
    about: dict[Labels, float] = {(__version__, caps.kill_rung, caps.memory_rung): 1}
    restarts: dict[Labels, float] = {(): caps.control_restarts}
    requests: dict[Labels, float] = {}
    for (route, status), count in live.requests.items():
        requests[route, str(status)] = count
    is_degraded = context.ledger.degraded is not None
    has_scheduler = context.pipes.health()["scheduler_running"]
    rungs = ("version", "kill_rung", "memory_rung")
    yield _family(
        Gauge,
        "up",
        "1 while the API serves and takes work.",
        (),
        {(): not context.control.stopping},
    )
    yield _family(Gauge, "info", "Version and rungs, always 1.", rungs, about)
    yield _family(
        Gauge, "resident_bytes", "Memory of the daemon's own processes.", ("process",), memory
    )
    yield _family(
        Gauge, "ledger_degraded", "1 while the ledger cannot write.", (), {(): is_degraded}
    )
    yield _family(Gauge, "scheduler_up", "1 while schedules work.", (), {(): has_scheduler})
    yield _family(
        Gauge, "units", "Tools, sessions of kernels, and pipes.", ("kind", "state"), states
    )
    yield _family(Gauge, "in_flight", "Runs, cells and executions under way.", ("kind",), in_flight)
    yield _family(Gauge, "waiting", "Runs, cells and executions in line.", ("kind",), waiting)
    yield _family(Counted, "control_restarts", "Restarts of the control plane.", (), restarts)
    yield _family(Counted, "http_requests", "Requests answered.", ("route", "status"), requests)


def _unit_families(
    call: ApiCall, units: Iterable[UnitView], measurements: Mapping[str, Measurement]
) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily as Counted
    from prometheus_client.core import GaugeMetricFamily as Gauge
    from prometheus_client.core import HistogramMetricFamily as Histogram

    up: dict[Labels, float] = {}
    failed: dict[Labels, float] = {}
    memory: dict[Labels, float] = {}
    busy: dict[Labels, float] = {}
    waiting: dict[Labels, float] = {}
    restarts: dict[Labels, float] = {}
    for unit in units:
        labels = (unit.kind, unit.name)
        up[labels] = is_up(unit)
        failed[labels] = has_failed(unit)
        measurement = measurements.get(unit.instance or "")
        memory[labels] = 0 if measurement is None else measurement.memory_bytes
        busy[labels] = unit.in_flight
        waiting[labels] = unit.waiting
        restarts[labels] = unit.restarts
    yield _family(
        Gauge, "unit_up", "1 while a unit is ready for work, 0 while it is not.", _UNIT, up
    )
    yield _family(Gauge, "unit_failed", "1 while a unit is broken, or ended badly.", _UNIT, failed)
    yield _family(
        Gauge, "unit_resident_bytes", "Memory of a unit, shared pages counted once.", _UNIT, memory
    )
    yield _family(
        Gauge, "unit_in_flight", "Runs, cells and executions of a unit under way.", _UNIT, busy
    )
    yield _family(
        Gauge, "unit_waiting", "Runs, cells and executions of a unit in line.", _UNIT, waiting
    )
    yield _family(Counted, "unit_restarts", "Lives of a unit that ended unasked.", _UNIT, restarts)
    events: dict[Labels, float] = {}
    durations = Histogram(
        "pxd_run_duration_seconds", "How long runs and executions took.", labels=_UNIT
    )
    for labels, counts in sorted(call.live.units.by_unit.items()):
        for (word, reason), count in counts.events.items():
            events[*labels, word, reason] = count
        if counts.runs is not None:
            durations.add_metric(labels, list(counts.runs.cumulative()), counts.runs.total_seconds)
    yield _family(
        Counted, "events", "What `pxctl events` tells.", (*_UNIT, "event", "reason"), events
    )
    yield durations


def is_up(unit: UnitView) -> bool:
    """Say whether a unit is ready for work: a pipe, that it is enabled and sound; others, that
    their process is.
    """
    if unit.config_error is not None:
        return False
    return bool(unit.enabled) if unit.kind == "pipe" else unit.state in _UP


def has_failed(unit: UnitView) -> bool:
    """Say whether somebody should look at a unit: it is broken, could not start, or its last
    execution failed.
    """
    return unit.config_error is not None or unit.state == "failed" or unit.last_status in _BAD_ENDS


def _family(make: Any, name: str, text: str, labels: Labels, values: Mapping[Labels, float]) -> Any:
    """Return a family of Prometheus's; `values` by the labels' values."""
    family = make(f"pxd_{name}", text, labels=labels)
    for key in sorted(values):
        family.add_metric(key, float(values[key]))
    return family
