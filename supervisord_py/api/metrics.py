"""`GET /api/metrics`: what Prometheus may scrape. prometheus_client writes the page, imported at the first scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from supervisord_py.api.context import ApiCall
from supervisord_py.api.live import TIMED
from supervisord_py.api.units import all_units, resident_bytes
from supervisord_py.kernels.session import SessionState

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_STATES = {
    "tool": ("cold", "starting", "ready", "busy", "stopping", "failed"),
    "kernel": tuple(state.value for state in SessionState),
    "pipe": ("running", "queued", "idle", "disabled", "failed"),
}
_COUNTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "starts": ("Instances that became ready.", ()),
    "start_failures": ("Starts that failed, by reason.", ("reason",)),
    "endings": ("Instances that ended, by reason.", ("reason",)),
    "kernel_starts": ("Kernels that became ready.", ()),
    "kernel_start_failures": ("Starts that failed, by reason.", ("reason",)),
    "kernel_endings": ("Kernels that ended, by reason.", ("reason",)),
    "pipe_executions_queued": ("Executions taken in, by trigger.", ("trigger",)),
    "pipe_executions": ("Executions that ended.", ("status", "error_type")),
}


async def metrics(call: ApiCall) -> web.StreamResponse:
    """Answer with the page."""
    from prometheus_client.exposition import generate_latest

    page: Any = SimpleNamespace(collect=lambda: _families(call))  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


Family = tuple[str, str, tuple[str, ...], Mapping[Any, float]]
"""Name, text, names of the labels, and the values by their labels."""


def _families(call: ApiCall) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    for kind, families in ((GaugeMetricFamily, _gauges(call)), (CounterMetricFamily, _counters(call))):
        for name, text, labels, rows in families:
            family = kind(f"pxd_{name}", text, labels=labels)
            for key, value in sorted((tuple(map(str, key)), value) for key, value in rows.items()):
                family.add_metric(key, float(value))
            yield family
    for name, text in TIMED.items():
        count, milliseconds = call.live.counts.milliseconds[name]
        yield SummaryMetricFamily(f"pxd_{name}", text, count_value=int(count), sum_value=milliseconds / 1000)


def _counters(call: ApiCall) -> Iterator[Family]:
    context, counters = call.context, call.live.counts.counters
    for name, (text, labels) in _COUNTED.items():
        yield name, text, labels, counters[name]
    yield "control_restarts", "Restarts of the control plane.", (), {(): context.placement.caps.control_restarts}
    restarts = context.pipes.health().scheduler_restarts
    yield "pipe_scheduler_restarts", "Times its loop had to be restarted.", (), {(): restarts}
    yield "http_requests", "Requests answered, by route and status.", ("route", "status"), call.live.requests


def _gauges(call: ApiCall) -> Iterator[Family]:
    context, units = call.context, all_units(call.context).values()
    caps, facts = context.placement.caps, context.control.facts
    yield "up", "1 while the API serves and takes work.", (), {(): not context.control.stopping}
    about = {(facts.version, caps.kill_rung, caps.memory_rung): 1}
    yield "info", "Version and rungs, always 1.", ("version", "kill_rung", "memory_rung"), about
    pids = {"keeper": caps.keeper_pid, "control": facts.control_pid}
    memory = {(name,): rss for name, pid in pids.items() if (rss := resident_bytes(pid)) is not None}
    yield "resident_bytes", "Resident memory of the daemon's own processes.", ("process",), memory
    yield "ledger_degraded", "1 while the ledger cannot write.", (), {(): context.ledger.degraded is not None}
    for kind, text in (("tool", "Tools by state."), ("kernel", "Sessions of kernels by state."),
                       ("pipe", "Pipes by state; failed are those with a config_error.")):  # fmt: skip
        found = Counter(str(one.state) for one in units if one.kind == kind)
        yield f"{kind}s", text, ("state",), {(state,): found[state] for state in _STATES[kind]}
    tools, kernels = ([one for one in units if one.kind == kind] for kind in ("tool", "kernel"))
    yield "in_flight", "Runs under way.", (), {(): sum(one.in_flight for one in tools)}
    yield "waiting", "Runs waiting in line.", (), {(): sum(one.waiting for one in tools)}
    calls = sum(one.waiting for one in kernels)
    yield "kernel_calls_waiting", "Calls waiting for their session.", (), {(): calls}
    groups = {(one["group"].value,): one for one in context.pipes.queue()}
    running = {key: len(one["running"]) for key, one in groups.items()}
    yield "pipe_running", "Executions under way.", ("group",), running
    queued = {key: len(one["waiting"]) for key, one in groups.items()}
    yield "pipe_queue_length", "Executions waiting in line.", ("group",), queued
    slots = {key: one["slots"] for key, one in groups.items()}
    yield "pipe_slots", "How many may run at a time.", ("group",), slots
    up = context.pipes.health().scheduler_running
    yield "pipe_scheduler_up", "1 while schedules start pipes.", (), {(): up}
