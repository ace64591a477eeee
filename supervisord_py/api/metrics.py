"""`GET /api/metrics`: what Prometheus may scrape, and the counting that needs to see events as they happen.

prometheus_client writes the page and is imported at the first scrape; until then the counts are plain numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import accumulate
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from aiohttp import web

from supervisord_py.api.context import Call
from supervisord_py.api.units import all_units, resident_bytes
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger.events import Event
from supervisord_py.ledger.pipe_executions import Status
from supervisord_py.process.events import EventGap, EventStream

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms' buckets, seconds."""
_STATES = {
    "tool": ("cold", "starting", "ready", "busy", "stopping", "failed"),
    "kernel": tuple(state.value for state in SessionState),
    "pipe": ("running", "queued", "idle", "disabled", "failed"),
}
_ENDS = {f"execution_{it.value}": it.value for it in Status if it.is_final}


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


class LifeCounts:
    """What the event stream told of the lives of one kind of unit."""

    def __init__(self) -> None:
        self.starts = 0
        self.cold_starts = Histogram()
        self.start_failures: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()


class Counts:
    """What the event stream told since the control plane started."""

    def __init__(self) -> None:
        self.lives = {"tool": LifeCounts(), "kernel": LifeCounts()}
        self.queued: Counter[str] = Counter()
        self.waits = Histogram()
        self.executions: Counter[tuple[str, str]] = Counter({(status, ""): 0 for status in _ENDS.values()})

    def count(self, event: Event) -> None:
        facts, lives = event.facts, self.lives.get((event.unit or "").partition(":")[0])
        match event.event:
            case "execution_queued":
                self.queued[str(facts.get("trigger"))] += 1
            case "execution_started":
                self.waits.observe(facts.get("queue_wait_ms"))
            case word if word in _ENDS:
                self.executions[_ENDS[word], str(facts.get("error_type") or "")] += 1
            case "ready" if lives is not None:
                lives.starts += 1
                lives.cold_starts.observe(facts.get("cold_start_ms"))
            case "stopped" | "died" if lives is not None and event.reason is not None:
                lives.endings[event.reason] += 1
            case "start_failed" if lives is not None:
                lives.start_failures[event.reason or "unknown"] += 1


async def watch_events(events: EventStream, counts: Counts) -> None:
    """Count what happens, until cancelled."""
    item: Event | EventGap
    with closing(events.subscribe()) as subscription:
        async for item in subscription:
            if isinstance(item, Event):
                counts.count(item)


async def metrics(call: Call) -> web.StreamResponse:
    """Answer with the page."""
    from prometheus_client.exposition import generate_latest

    page: Any = SimpleNamespace(collect=partial(map, _family, _families(call)))  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


class Family(NamedTuple):
    """A gauge, counter or histogram: values by their labels, or by their one label."""

    kind: str
    name: str
    text: str
    labels: tuple[str, ...] = ()
    rows: Mapping[Any, float] | Histogram = MappingProxyType({})


def _family(family: Family) -> Any:
    from prometheus_client import core

    name, rows = f"pxd_{family.name}", family.rows
    if isinstance(rows, Histogram):
        return core.HistogramMetricFamily(name, family.text, buckets=rows.cumulative(), sum_value=rows.seconds)
    kind = core.GaugeMetricFamily if family.kind == "gauge" else core.CounterMetricFamily
    found = kind(name, family.text, labels=family.labels)
    told = [(tuple(map(str, key)) if isinstance(key, tuple) else (key,), value) for key, value in rows.items()]
    for labels, value in sorted(told):
        found.add_metric(labels, float(value))
    return found


def _families(call: Call) -> Iterator[Family]:
    context, live, counts = call.context, call.live, call.live.counts
    units = all_units(context).values()
    caps, facts = context.placement.caps, context.control.facts()
    pipes, health = context.pipes, context.pipes.health()
    groups = {one.group.value: one for one in pipes.queue()}
    pids = {"keeper": caps.keeper_pid, "control": facts.control_pid}
    memory = {name: rss for name, pid in pids.items() if (rss := resident_bytes(pid)) is not None}
    info = {(facts.version, caps.kill_rung, caps.memory_rung): 1}

    def gauge(name: str, text: str, value: float) -> Family:
        return Family("gauge", name, text, (), {(): value})

    def gauges(name: str, text: str, label: str, rows: Mapping[Any, float]) -> Family:
        return Family("gauge", name, text, (label,), rows)

    def states(name: str, text: str, kind: str) -> Family:
        found = Counter(str(one.state) for one in units if one.kind == kind)
        return gauges(name, text, "state", {state: found[state] for state in _STATES[kind]})

    def lives(prefix: str, what: str, kind: LifeCounts) -> Iterator[Family]:
        yield Family("counter", f"{prefix}starts", f"{what} that became ready.", (), {(): kind.starts})
        failures = kind.start_failures
        yield Family("counter", f"{prefix}start_failures", "Starts that failed, by reason.", ("reason",), failures)
        yield Family("histogram", f"{prefix}cold_start_seconds", "From the spawn to ready.", (), kind.cold_starts)
        yield Family("counter", f"{prefix}endings", f"{what} that ended, by reason.", ("reason",), kind.endings)

    yield gauge("up", "1 while the API serves and takes work.", not context.control.stopping)
    yield Family("gauge", "info", "Version and rungs, always 1.", ("version", "kill_rung", "memory_rung"), info)
    yield Family("counter", "control_restarts", "Restarts of the control plane.", (), {(): caps.control_restarts})
    yield gauges("resident_bytes", "Resident memory of the daemon's own processes.", "process", memory)
    yield gauge("keeper_start_time_seconds", "Unix time.", caps.keeper_started_at)
    yield gauge("ledger_degraded", "1 while the ledger cannot write.", context.ledger.degraded is not None)
    yield states("tools", "Tools by state.", "tool")
    yield gauge("in_flight", "Runs under way.", sum(one.in_flight for one in units if one.kind == "tool"))
    yield gauge("waiting", "Runs waiting in line.", sum(one.waiting for one in units if one.kind == "tool"))
    endings = counts.lives["tool"].endings
    evictions = {reason: endings.get(reason, 0) for reason in ("evicted_lru", "evicted_ttl")}
    yield Family("counter", "evictions", "Idle instances stopped for room or age.", ("reason",), evictions)
    yield from lives("", "Instances", counts.lives["tool"])
    yield states("kernels", "Sessions of kernels by state.", "kernel")
    waiting = sum(one.waiting for one in units if one.kind == "kernel")
    yield gauge("kernel_calls_waiting", "Calls waiting for their session.", waiting)
    yield from lives("kernel_", "Kernels", counts.lives["kernel"])
    yield states("pipes", "Pipes by state; failed are those with a config_error.", "pipe")
    running = {name: len(one.running) for name, one in groups.items()}
    yield gauges("pipe_running", "Executions under way.", "group", running)
    queued = {name: len(one.waiting) for name, one in groups.items()}
    yield gauges("pipe_queue_length", "Executions waiting in line.", "group", queued)
    slots = {name: one.slots for name, one in groups.items()}
    yield gauges("pipe_slots", "How many may run at a time.", "group", slots)
    yield gauge("pipe_scheduler_up", "1 while schedules start pipes.", health.scheduler_running)
    restarts = {(): health.scheduler_restarts}
    yield Family("counter", "pipe_scheduler_restarts", "Times its loop had to be restarted.", (), restarts)
    text = "Executions taken in, by trigger."
    yield Family("counter", "pipe_executions_queued", text, ("trigger",), counts.queued)
    names = ("status", "error_type")
    yield Family("counter", "pipe_executions", "Executions that ended.", names, counts.executions)
    yield Family("histogram", "pipe_queue_wait_seconds", "From the trigger to the start.", (), counts.waits)
    names = ("route", "status")
    yield Family("counter", "http_requests", "Requests answered, by route and status.", names, live.requests)
