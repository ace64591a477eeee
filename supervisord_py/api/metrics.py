"""`GET /api/metrics`: what Prometheus may scrape, and the counting that needs to see events as they happen.

prometheus_client writes the page and is imported at the first scrape; until then the counts are plain numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import closing
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from aiohttp import web

from supervisord_py.api.units import all_units, resident_bytes
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger.events import Event
from supervisord_py.ledger.pipe_executions import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from supervisord_py.api.context import Call
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

    page: Any = _Page(call)  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


class _Page:
    def __init__(self, call: Call) -> None:
        self._context = call.context
        self._live = call.live
        self._units = all_units(call.context).values()

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from self._daemon()
        yield self._states("tools", "Tools by state.", "tool")
        tools = [unit for unit in self._units if unit.kind == "tool"]
        yield _gauge("in_flight", "Runs under way.", sum(one.in_flight for one in tools))
        yield _gauge("waiting", "Runs waiting in line.", sum(one.waiting for one in tools))
        endings = self._live.counts.lives["tool"].endings
        evictions = {reason: endings.get(reason, 0) for reason in ("evicted_lru", "evicted_ttl")}
        yield _counter("evictions", "Idle instances stopped for room or age.", ("reason",), evictions)
        yield from _lives("", "Instances", self._live.counts.lives["tool"])
        yield self._states("kernels", "Sessions of kernels by state.", "kernel")
        waiting = sum(one.waiting for one in self._units if one.kind == "kernel")
        yield _gauge("kernel_calls_waiting", "Calls waiting for their session.", waiting)
        yield from _lives("kernel_", "Kernels", self._live.counts.lives["kernel"])
        yield from self._pipes()
        names = ("route", "status")
        yield _counter("http_requests", "Requests answered, by route and status.", names, self._live.requests)

    def _states(self, name: str, text: str, kind: str) -> Metric:
        states = Counter(one.state for one in self._units if one.kind == kind)
        return _gauges(name, text, ("state",), {state: states[state] for state in _STATES[kind]})

    def _daemon(self) -> Iterator[Metric]:
        context = self._context
        caps, facts = context.placement.caps, context.control.facts()
        yield _gauge("up", "1 while the API serves and takes work.", not context.control.stopping)
        info = (facts.version, caps.kill_rung, caps.memory_rung)
        yield _gauges("info", "Version and rungs, always 1.", ("version", "kill_rung", "memory_rung"), {info: 1})
        yield _counter("control_restarts", "Restarts of the control plane.", (), {(): caps.control_restarts})
        pids = {"keeper": caps.keeper_pid, "control": facts.control_pid}
        memory = {name: rss for name, pid in pids.items() if (rss := resident_bytes(pid)) is not None}
        yield _gauges("resident_bytes", "Resident memory of the daemon's own processes.", ("process",), memory)
        yield _gauge("keeper_start_time_seconds", "Unix time.", caps.keeper_started_at)
        yield _gauge("ledger_degraded", "1 while the ledger cannot write.", context.ledger.degraded is not None)

    def _pipes(self) -> Iterator[Metric]:
        pipes, counts = self._context.pipes, self._live.counts
        yield self._states("pipes", "Pipes by state; failed are those with a config_error.", "pipe")
        groups = {one.group.value: one for one in pipes.queue()}
        running = {name: len(one.running) for name, one in groups.items()}
        yield _gauges("pipe_running", "Executions under way.", ("group",), running)
        waiting = {name: len(one.waiting) for name, one in groups.items()}
        yield _gauges("pipe_queue_length", "Executions waiting in line.", ("group",), waiting)
        slots = {name: one.slots for name, one in groups.items()}
        yield _gauges("pipe_slots", "How many may run at a time.", ("group",), slots)
        health = pipes.health()
        yield _gauge("pipe_scheduler_up", "1 while schedules start pipes.", health.scheduler_running)
        restarts = {(): health.scheduler_restarts}
        yield _counter("pipe_scheduler_restarts", "Times its loop had to be restarted.", (), restarts)
        yield _counter("pipe_executions_queued", "Executions taken in, by trigger.", ("trigger",), counts.queued)
        names = ("status", "error_type")
        yield _counter("pipe_executions", "Executions that ended.", names, counts.executions)
        yield _histogram("pipe_queue_wait_seconds", "From the trigger to the start.", counts.waits)


def _lives(prefix: str, what: str, counts: LifeCounts) -> Iterator[Metric]:
    yield _counter(f"{prefix}starts", f"{what} that became ready.", (), {(): counts.starts})
    yield _counter(f"{prefix}start_failures", "Starts that failed, by reason.", ("reason",), counts.start_failures)
    yield _histogram(f"{prefix}cold_start_seconds", "From the spawn to ready.", counts.cold_starts)
    yield _counter(f"{prefix}endings", f"{what} that ended, by reason.", ("reason",), counts.endings)


def _gauge(name: str, text: str, value: float) -> Metric:
    return _gauges(name, text, (), {(): value})


def _gauges(name: str, text: str, labels: tuple[str, ...], rows: Mapping[Any, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"pxd_{name}", text, labels=labels), rows.items())


def _counter(name: str, text: str, labels: tuple[str, ...], rows: Mapping[Any, float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"pxd_{name}", text, labels=labels), rows.items())


def _filled(family: Any, rows: Iterable[tuple[Any, float]]) -> Metric:
    """Add rows of labels, or of the one label, and a value."""
    told = [(tuple(map(str, labels)) if isinstance(labels, tuple) else (labels,), value) for labels, value in rows]
    for labels, value in sorted(told):
        family.add_metric(labels, float(value))
    filled: Metric = family
    return filled


def _histogram(name: str, text: str, counts: Histogram) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(f"pxd_{name}", text, buckets=counts.cumulative(), sum_value=counts.seconds)
