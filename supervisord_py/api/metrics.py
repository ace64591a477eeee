"""`GET /api/metrics`: what Prometheus may scrape, and the counting that needs to see events as they happen.

prometheus_client writes the page and is imported at the first scrape; until then the counts are plain numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import closing
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from supervisord_py.api.negotiation import PROMETHEUS
from supervisord_py.api.pipe_units import PipeState
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger.events import Event
from supervisord_py.ledger.pipe_executions import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric

    from supervisord_py.api.call import Call, Live
    from supervisord_py.process.events import EventGap, EventStream

F = TypeVar("F", "GaugeMetricFamily", "CounterMetricFamily")
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms' buckets, seconds."""
_TOOL_STATES = ("cold", "starting", "ready", "busy", "stopping", "failed")
_PIPE_STATES = ("running", "queued", "idle", "disabled", "failed")
_ENDS = {f"execution_{it.value}": it.value for it in Status if it not in {Status.QUEUED, Status.RUNNING}}


class Histogram:
    """Observations in buckets; `seconds` is their sum."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Return for each bound how many observations were at most that; the last one counts all."""
        edges = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return list(zip(edges, accumulate(self.buckets), strict=True))


class UnitCounts:
    """What the event stream told of one kind of unit since the control plane started."""

    def __init__(self) -> None:
        self.starts = 0
        self.cold_starts = Histogram()
        self.start_failures: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.events_missed = 0

    def count(self, item: Event | EventGap) -> None:
        """Count one event."""
        if not isinstance(item, Event):
            self.events_missed += item.missed
        elif item.event == "ready":
            self.starts += 1
            milliseconds = item.facts.get("cold_start_ms")
            if isinstance(milliseconds, int | float):
                self.cold_starts.observe(milliseconds / 1000)
        elif item.event in {"stopped", "died"} and item.reason is not None:
            self.endings[item.reason] += 1
        elif item.event == "start_failed":
            self.start_failures[item.reason or "unknown"] += 1


class PipeCounts:
    """What the event stream told of executions: taken in by trigger, ended by status and error type."""

    def __init__(self) -> None:
        self.queued: Counter[str] = Counter()
        self.waits = Histogram()
        self.endings: Counter[tuple[str, str]] = Counter({(status, ""): 0 for status in _ENDS.values()})

    def count(self, event: Event) -> None:
        """Count one event."""
        facts = event.facts
        if event.event == "execution_queued":
            self.queued[str(facts.get("trigger"))] += 1
        elif event.event == "execution_started":
            waited = facts.get("queue_wait_ms")
            if isinstance(waited, int | float):
                self.waits.observe(waited / 1000)
        elif event.event in _ENDS:
            self.endings[_ENDS[event.event], str(facts.get("error_type") or "")] += 1


async def watch_events(events: EventStream, live: Live) -> None:
    """Count what happens, until cancelled."""
    with closing(events.subscribe()) as subscription:
        async for item in subscription:
            kind = (item.unit or "").partition(":")[0] if isinstance(item, Event) else ""
            if isinstance(item, Event) and kind == "pipe":
                live.pipes.count(item)
            else:
                (live.kernels if kind == "kernel" else live.tools).count(item)


async def metrics(call: Call) -> web.StreamResponse:
    """Answer with the page."""
    from prometheus_client.exposition import generate_latest

    page: Any = _Page(call)  # all that it asks of a registry
    return web.Response(body=generate_latest(page), headers={"Content-Type": PROMETHEUS})


class _Page:
    def __init__(self, call: Call) -> None:
        self._call = call

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from self._daemon()
        yield from self._tools()
        yield from self._kernels()
        yield from self._pipes()
        answered = self._call.live.requests
        rows = [((route, str(status)), count) for (route, status), count in answered.items()]
        yield _counter("http_requests", "Requests answered, by route and status.", ("route", "status"), rows)

    def _daemon(self) -> Iterator[Metric]:
        from supervisord_py.api.status import resident_bytes  # which needs what counts

        context = self._call.context
        caps, facts = context.placement.caps, context.control.facts()
        yield _gauge("up", "1 while the API serves and takes work.", not context.control.stopping)
        info = (facts.version, caps.kill_rung, caps.memory_rung)
        names = ("version", "kill_rung", "memory_rung")
        yield _gauges("info", "Version and rungs, always 1.", names, [(info, 1)])
        yield _counter("control_restarts", "Restarts of the control plane.", (), [((), caps.control_restarts)])
        pids = (("keeper", caps.keeper_pid), ("control", facts.control_pid))
        memory = [((name,), rss) for name, pid in pids if (rss := resident_bytes(pid)) is not None]
        yield _gauges("resident_bytes", "Resident memory of the daemon's own processes.", ("process",), memory)
        yield _gauge("keeper_start_time_seconds", "Unix time.", caps.keeper_started_at)
        yield _gauge("ledger_degraded", "1 while the ledger cannot write.", context.ledger.degraded is not None)

    def _tools(self) -> Iterator[Metric]:
        states, counts = self._call.context.launcher.snapshot(None), self._call.live.tools
        by_state = Counter(state.state for state in states)
        known = {state.name for state in states}
        by_state["cold"] += sum(entry.name not in known for entry in self._call.context.catalog.entries())
        yield _gauges("tools", "Tools by state.", ("state",), [((word,), by_state[word]) for word in _TOOL_STATES])
        yield _gauge("in_flight", "Runs under way.", sum(one.in_flight for one in states))
        yield _gauge("waiting", "Runs waiting in line.", sum(one.waiting for one in states))
        evictions = [((reason,), counts.endings.get(reason, 0)) for reason in ("evicted_lru", "evicted_ttl")]
        yield _counter("evictions", "Idle instances stopped for room or age.", ("reason",), evictions)
        yield from _lives("", "Instances", counts)

    def _kernels(self) -> Iterator[Metric]:
        sessions = self._call.context.kernels.snapshot()
        by_state = Counter(view.state for view in sessions)
        states = [((state.value,), by_state[state]) for state in SessionState]
        yield _gauges("kernels", "Sessions of kernels by state.", ("state",), states)
        yield _gauge("kernel_calls_waiting", "Calls waiting for their session.", sum(it.queued for it in sessions))
        yield from _lives("kernel_", "Kernels", self._call.live.kernels)

    def _pipes(self) -> Iterator[Metric]:
        pipes, counts = self._call.context.pipes, self._call.live.pipes
        by_state = Counter(PipeState(view).state for view in pipes.snapshot())
        states = [((word,), by_state[word]) for word in _PIPE_STATES]
        yield _gauges("pipes", "Pipes by state; failed are those with a config_error.", ("state",), states)
        groups = pipes.queue().groups
        for name, text, value in (
            ("running", "Executions under way.", lambda it: len(it.running)),
            ("queue_length", "Executions waiting in line.", lambda it: len(it.waiting)),
            ("slots", "How many may run at a time.", lambda it: it.slots),
        ):
            yield _gauges(f"pipe_{name}", text, ("group",), [((one.group.value,), value(one)) for one in groups])
        health = pipes.health()
        yield _gauge("pipe_scheduler_up", "1 while schedules start pipes.", health.scheduler_running)
        restarts = [((), health.scheduler_restarts)]
        yield _counter("pipe_scheduler_restarts", "Times its loop had to be restarted.", (), restarts)
        queued = _rows(counts.queued)
        yield _counter("pipe_executions_queued", "Executions taken in, by trigger.", ("trigger",), queued)
        names = ("status", "error_type")
        yield _counter("pipe_executions", "Executions that ended.", names, list(counts.endings.items()))
        yield _histogram("pipe_queue_wait_seconds", "From the trigger to the start.", counts.waits)


def _lives(prefix: str, what: str, counts: UnitCounts) -> Iterator[Metric]:
    yield _counter(f"{prefix}starts", f"{what} that became ready.", (), [((), counts.starts)])
    failures = _rows(counts.start_failures)
    yield _counter(f"{prefix}start_failures", "Starts that failed, by reason.", ("reason",), failures)
    yield _histogram(f"{prefix}cold_start_seconds", "From the spawn to ready.", counts.cold_starts)
    yield _counter(f"{prefix}endings", f"{what} that ended, by reason.", ("reason",), _rows(counts.endings))


def _rows(counts: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return [((word,), count) for word, count in counts.items()]


def _gauge(name: str, text: str, value: float) -> Metric:
    return _gauges(name, text, (), [((), value)])


def _gauges(name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"pxd_{name}", text, labels=labels), rows)


def _counter(name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"pxd_{name}", text, labels=labels), rows)


def _filled(family: F, rows: Iterable[tuple[tuple[str, ...], float]]) -> F:
    for labels, value in sorted(rows):
        family.add_metric(labels, float(value))
    return family


def _histogram(name: str, text: str, counts: Histogram) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(f"pxd_{name}", text, buckets=counts.cumulative(), sum_value=counts.seconds)
