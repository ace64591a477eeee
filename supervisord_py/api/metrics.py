"""`GET /api/metrics`: what Prometheus may scrape, and the counting that needs to see events as they happen.

prometheus_client writes the page and is imported at the first scrape; until then the counts are plain numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from supervisord_py.api.context import Call
from supervisord_py.api.units import all_units, resident_bytes
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger.events import Event
from supervisord_py.ledger.pipe_executions import Status

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # of the histograms' buckets, seconds
_STATES = {
    "tool": ("cold", "starting", "ready", "busy", "stopping", "failed"),
    "kernel": tuple(state.value for state in SessionState),
    "pipe": ("running", "queued", "idle", "disabled", "failed"),
}
_ENDS = {f"execution_{it.value}": it.value for it in Status if it.is_final}
_PREFIXES = {"tool": "", "kernel": "kernel_"}
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
_TIMED = {
    "cold_start_seconds": "From the spawn to ready.",
    "kernel_cold_start_seconds": "From the spawn to ready.",
    "pipe_queue_wait_seconds": "From the trigger to the start.",
}


class Histogram:
    """Observations in buckets; `seconds` is their sum."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, milliseconds: Any) -> None:
        """Count one observation; what is no number is none."""
        if isinstance(milliseconds, int | float):
            self.buckets[bisect_left(BOUNDS, milliseconds / 1000)] += 1
            self.seconds += milliseconds / 1000

    def cumulative(self) -> list[tuple[str, int]]:
        """Return for each bound how many observations were at most that; the last one counts all."""
        edges = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return list(zip(edges, accumulate(self.buckets), strict=True))


class Counts:
    """What the event stream told since the control plane started, by family, and there by labels."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in _COUNTED}
        self.times = {name: Histogram() for name in _TIMED}
        self.counters["starts"][()] = self.counters["kernel_starts"][()] = 0
        self.counters["pipe_executions"].update({(status, ""): 0 for status in _ENDS.values()})

    def count(self, event: Event) -> None:
        facts, prefix = event.facts, _PREFIXES.get((event.unit or "").partition(":")[0])
        match event.event:
            case "execution_queued":
                self.counters["pipe_executions_queued"][str(facts.get("trigger")),] += 1
            case "execution_started":
                self.times["pipe_queue_wait_seconds"].observe(facts.get("queue_wait_ms"))
            case word if word in _ENDS:
                self.counters["pipe_executions"][_ENDS[word], str(facts.get("error_type") or "")] += 1
            case "ready" if prefix is not None:
                self.counters[f"{prefix}starts"][()] += 1
                self.times[f"{prefix}cold_start_seconds"].observe(facts.get("cold_start_ms"))
            case "stopped" | "died" if prefix is not None and event.reason is not None:
                self.counters[f"{prefix}endings"][event.reason,] += 1
            case "start_failed" if prefix is not None:
                self.counters[f"{prefix}start_failures"][event.reason or "unknown",] += 1


async def metrics(call: Call) -> web.StreamResponse:
    """Answer with the page."""
    from prometheus_client.exposition import generate_latest

    page: Any = SimpleNamespace(collect=lambda: _families(call))  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


def _families(call: Call) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    context, live = call.context, call.live
    units, counts = all_units(context).values(), live.counts
    caps, facts = context.placement.caps, context.control.facts()
    groups, health = {one.group.value: one for one in context.pipes.queue()}, context.pipes.health()

    def family(kind: Any, name: str, text: str, labels: tuple[str, ...], rows: Mapping[Any, float]) -> Any:
        found = kind(f"pxd_{name}", text, labels=labels)
        for key, value in sorted((tuple(map(str, key)), value) for key, value in rows.items()):
            found.add_metric(key, float(value))
        return found

    def counter(name: str, text: str, labels: tuple[str, ...], rows: Mapping[Any, float]) -> Any:
        return family(CounterMetricFamily, name, text, labels, rows)

    def gauge(name: str, text: str, value: float) -> Any:
        return family(GaugeMetricFamily, name, text, (), {(): value})

    def gauges(name: str, text: str, label: str, rows: Mapping[str, float]) -> Any:
        return family(GaugeMetricFamily, name, text, (label,), {(key,): value for key, value in rows.items()})

    yield gauge("up", "1 while the API serves and takes work.", not context.control.stopping)
    info, names = (facts.version, caps.kill_rung, caps.memory_rung), ("version", "kill_rung", "memory_rung")
    yield family(GaugeMetricFamily, "info", "Version and rungs, always 1.", names, {info: 1})
    yield counter("control_restarts", "Restarts of the control plane.", (), {(): caps.control_restarts})
    pids = {"keeper": caps.keeper_pid, "control": facts.control_pid}
    memory = {name: rss for name, pid in pids.items() if (rss := resident_bytes(pid)) is not None}
    yield gauges("resident_bytes", "Resident memory of the daemon's own processes.", "process", memory)
    yield gauge("keeper_start_time_seconds", "Unix time.", caps.keeper_started_at)
    yield gauge("ledger_degraded", "1 while the ledger cannot write.", context.ledger.degraded is not None)
    for kind, text in (("tool", "Tools by state."), ("kernel", "Sessions of kernels by state."),
                       ("pipe", "Pipes by state; failed are those with a config_error.")):  # fmt: skip
        states = Counter(str(one.state) for one in units if one.kind == kind)
        yield gauges(f"{kind}s", text, "state", {state: states[state] for state in _STATES[kind]})
    yield gauge("in_flight", "Runs under way.", sum(one.in_flight for one in units if one.kind == "tool"))
    yield gauge("waiting", "Runs waiting in line.", sum(one.waiting for one in units if one.kind == "tool"))
    waiting = sum(one.waiting for one in units if one.kind == "kernel")
    yield gauge("kernel_calls_waiting", "Calls waiting for their session.", waiting)
    evictions = {(reason,): counts.counters["endings"][reason,] for reason in ("evicted_lru", "evicted_ttl")}
    yield counter("evictions", "Idle instances stopped for room or age.", ("reason",), evictions)
    running = {name: len(one.running) for name, one in groups.items()}
    yield gauges("pipe_running", "Executions under way.", "group", running)
    queued = {name: len(one.waiting) for name, one in groups.items()}
    yield gauges("pipe_queue_length", "Executions waiting in line.", "group", queued)
    slots = {name: one.slots for name, one in groups.items()}
    yield gauges("pipe_slots", "How many may run at a time.", "group", slots)
    yield gauge("pipe_scheduler_up", "1 while schedules start pipes.", health.scheduler_running)
    restarts = {(): health.scheduler_restarts}
    yield counter("pipe_scheduler_restarts", "Times its loop had to be restarted.", (), restarts)
    for name, (text, labels) in _COUNTED.items():
        yield counter(name, text, labels, counts.counters[name])
    for name, text in _TIMED.items():
        times = counts.times[name]
        yield HistogramMetricFamily(f"pxd_{name}", text, buckets=times.cumulative(), sum_value=times.seconds)
    yield counter("http_requests", "Requests answered, by route and status.", ("route", "status"), live.requests)
