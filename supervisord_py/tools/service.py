"""The warm tools: requests go to the pool, what it decides is performed, and what was seen is remembered.

Decisions are made in `process.pool` and nowhere here; how an instance lives is the supervisor's. A waiter always hears
something: an instance, a refusal, or why the start failed.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from supervisord_py.errors import (
    ConfigError,
    InterruptedRunError,
    KeeperLostError,
    PxError,
    SurvivorsError,
    TimedOutError,
    UnknownUnitError,
)
from supervisord_py.ledger.instances import PINS, RUNS, UNIT_STATES, PinRow, RunRow, UnitStateRow
from supervisord_py.process import clock
from supervisord_py.process.instance import Phase, reason_of
from supervisord_py.process.model import Reason, StopReport
from supervisord_py.process.pool import Bounds, Fail, Grant, Pin, Pool, Refuse, Request, Rules, Start, Stop
from supervisord_py.process.supervisor import Supervisor
from supervisord_py.process.zygote_pool import ZygotePool
from supervisord_py.tools import failures
from supervisord_py.tools.driver import ToolDriver, ToolInstance
from supervisord_py.tools.manifest import MEBIBYTE
from supervisord_py.tools.upstream import schema_drift

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.pool import Action
    from supervisord_py.tools.catalog import Catalog, Entry
    from supervisord_py.tools.config import PoolLimits, ToolsConfig
    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.proxy import Run

PERIOD_SECONDS = 5.0
LONGEST_TIMER_SECONDS = 60.0
"""The loop's clock stands still during suspend, the pool's does not: look at it again after that at the latest."""
FAILED_SECONDS = 1.0
"""Failed runs of a tool are an event at most that often: a tool that fails every request must not flood the stream."""
REMEMBER_SECONDS = 1.0
"""The time of last use is written at most that often; a lost second only makes an instance a second older."""
WRITE_SECONDS = 0.05
"""A run that takes longer has a row while it goes on; that of a shorter one is written once, when it is over."""
_FACTS = ("reason", "failure", "drift", "drift_digest", "unpinned", "imports")
_log = structlog.get_logger(__name__)


class Granted(msgspec.Struct, frozen=True):
    """A request's hold on an instance; `cold_start_ms` is None unless it waited for the start."""

    ticket: int
    instance: ToolInstance
    cold_start_ms: int | None


class LastState(msgspec.Struct):
    """What is known of a tool beyond its present instance; survives restarts of everything."""

    state: str = "cold"  # as last seen
    reason: str | None = None  # why its last instance ended
    last_used: float | None = None  # Unix seconds of the end of the last request
    restarts: int = 0  # how often a ready instance ended unasked
    failure: dict[str, Any] | None = None  # the problem document of the last start, if that failed
    drift: tuple[str, ...] = ()  # where `/schema` differed from `tool.json`, for the declaration `drift_digest`
    drift_digest: str = ""
    unpinned: bool = False  # somebody took back the pin that the tool declares for itself
    imports: tuple[str, ...] = ()  # of installed packages, in order: for a zygote before its first start


class ToolState(NamedTuple):
    """One tool as it is now, for `status` and `launcher/state`. Times are Unix seconds; `waiting` counts requests."""

    unit: str
    name: str
    state: str
    reason: str | None
    pid: int | None
    port: int | None
    started_at: float | None
    last_used: float | None
    in_flight: int
    waiting: int
    pinned: bool
    pin: Pin
    start_method: str | None
    restarts: int
    instance: str | None
    cold_start_ms: int | None
    config_error: ConfigError | None
    failure: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    survivors: tuple[int, ...]
    rss_bytes: int | None


def bounds_of(limits: PoolLimits) -> Bounds:
    """Return the bounds of the pool that the settings ask for."""
    budget = limits.memory_budget_mb and limits.memory_budget_mb * MEBIBYTE
    return Bounds(max(1, limits.warm_keep_max), budget, limits.queue_max)


def rules_of(spec: ToolSpec) -> Rules:
    """Return what the pool has to know of a tool."""
    return Rules(spec.digest, spec.concurrency, spec.warm_keep_seconds)


class Tools:
    """Starts, keeps and stops tools. `open` it where the loop runs; end it with `close` or `detach`."""

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        catalog: Catalog,
        config: ToolsConfig,
        events: EventStream,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.catalog = catalog
        self.supervisor = Supervisor(placement, ledger, events)
        self.pool = Pool(bounds_of(config.pool))
        self._environ = os.environ if environ is None else environ
        self.zygotes = ZygotePool(placement, "tool", lambda: self.config.zygotes)
        self.driver = ToolDriver(self.supervisor, catalog, config, self._environ, self._gone, zygotes=self.zygotes)
        self.driver.on_imports = self._imported
        self._placement = placement
        self._ledger = ledger
        self._events = events
        self._instances: dict[int, ToolInstance] = {}
        self._waiters: dict[int, asyncio.Future[Granted]] = {}
        self._specs: dict[str, tuple[ToolSpec, Rules]] = {}
        self._states: dict[str, LastState] = {}
        self._newest: dict[str, float] = {}
        """When the newest known instance of each tool began: an older one that ends says nothing of the tool."""
        self._written: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None
        self._begun: dict[int, Run] = {}
        """Runs under way whose rows are not there yet, by the ids of these."""
        self._writes: asyncio.TimerHandle | None = None

    # -- beginning and end -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take over what the keeper holds; returns when every adopted ready tool serves again."""
        await self.supervisor.open()
        await self.read_last_states()
        for row in await PINS.find(self._ledger):
            if row.unit.startswith("tool:"):
                pin = Pin.FOREVER if row.forever else Pin.LRU
                self._perform(self.pool.pin(row.unit.removeprefix("tool:"), pin, clock.now()))
        for instance in await self.supervisor.adopt(self.driver):
            self._adopted(instance)
        for tool in self._states:
            if self.instance_of(tool) is None:
                await self.driver.listeners.recall(tool)
                self._watch_port(tool)
        self.supervisor.task(self._expect_pinned())
        self.supervisor.task(self._keep_up())

    async def _expect_pinned(self) -> None:
        """End the zygotes of an earlier control plane, and have new ones for what is pinned before anybody asks."""
        await self.zygotes.end_left_over()
        for tool in self.snapshot():
            if tool.pinned and (imports := self.last_state(tool.name).imports):
                with suppress(PxError):  # its files may be broken by now: its next start will say so
                    await self.driver.expect(self.catalog.get(tool.name), imports)

    def _imported(self, tool: str, imports: Sequence[str]) -> None:
        """Remember what a tool has imported, beside what it did before."""
        known = self.last_state(tool).imports
        if found := tuple(dict.fromkeys((*known, *imports)))[len(known) :]:
            self.remember(tool, imports=known + found)

    async def read_last_states(self) -> None:
        """Read what an earlier control plane remembered of tools; what is not understood counts for nothing."""
        for row in await UNIT_STATES.find(self._ledger):
            known = {**row.facts, "state": row.state, "last_used": row.last_used, "restarts": row.restarts}
            with suppress(msgspec.ValidationError):
                if row.unit.startswith("tool:"):
                    self._states[row.unit.removeprefix("tool:")] = msgspec.convert(known, LastState)

    def _adopted(self, instance: ToolInstance) -> None:
        """Count an adopted instance in and go on with it; a second one of its tool is stopped."""
        name, ready = instance.name, instance.ready_at is not None
        if self.pool.slot(name) is not None:
            self.supervisor.task(self.supervisor.stop(self.driver, instance, Reason.REPLACED))
            return
        self._newest[name] = instance.started_at
        instance.serial = self.pool.reserve_serial()
        self._instances[instance.serial] = instance
        self.remember(name, state=instance.phase.value)
        age = max(0.0, time.time() - (self.last_state(name).last_used or instance.started_at))
        instance.life = self.supervisor.task(self._watch(instance) if ready else self._live(instance, resume=True))
        now, rules = clock.now(), rules_of(instance.spec)
        adopted = self.pool.adopt(
            name, instance.serial, rules, digest=instance.digest, last_used=now - age, ready=ready, now=now
        )
        self._perform(adopted)

    async def close(self) -> None:
        """Stop every tool, all at once; runs in flight hear of the shutdown.

        Returns when nothing is left, or when what is left has survived a stop: the keeper goes on with that.
        """
        self._perform(self.pool.close(clock.now()))
        for instance in tuple(self._instances.values()):
            await instance.stopped.wait()
        await self._let_go()

    async def detach(self) -> None:
        """End without stopping anything: another control plane will adopt the tools. Runs in flight are cut off."""
        detail, hint = "The control plane is being replaced; the tool itself goes on.", "Ask again."
        for instance in tuple(self._instances.values()):
            for run in tuple(instance.runs):
                run.interrupt(InterruptedRunError(detail, hint=hint, unit=instance.unit))
        await self._let_go()

    async def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for tool in tuple(self._states):
            self.remember(tool)
        await self.zygotes.close()
        await self.supervisor.close()
        for instance in self._instances.values():
            await self.driver.let_go(instance)
        self.driver.listeners.close()

    # -- what the pool decides ---------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        cause: int | None = None
        for action in actions:
            if isinstance(action, Start):  # before the others: it is the cause of the evictions beside it
                cause = self._start(action)
        for action in actions:
            match action:
                case Stop(_, serial, reason):
                    instance = self._instances[serial]
                    if reason is Reason.EVICTED_LRU and cause is not None:
                        instance.event = cause
                    self.supervisor.task(self.supervisor.stop(self.driver, instance, reason))
                case Grant(ticket, _, serial, cold):
                    instance = self._instances[serial]
                    self._answer(ticket, Granted(ticket, instance, instance.cold_start_ms if cold else None))
                case Refuse():
                    last = self.last_state(action.unit).failure
                    self._answer(action.ticket, failures.refusal_error(action, self.config.pool, last))
                case Fail(ticket, _, serial):
                    error = self._instances[serial].error or KeeperLostError("The start was given up.")
                    self._answer(ticket, error.fresh())
        self._arm()

    def _arm(self) -> None:
        """See to it that the pool is told of its next deadline. A tick that comes too early does no harm."""
        deadline = self.pool.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + min(max(0.0, deadline - clock.now()), LONGEST_TIMER_SECONDS)
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self.pool.tick(clock.now()))

    def _answer(self, ticket: int, result: Granted | PxError) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is None or waiter.done():
            return  # it gave up in this very moment, and says so itself
        if isinstance(result, PxError):
            waiter.set_exception(result)
        else:
            waiter.set_result(result)

    # -- lives of instances ------------------------------------------------------------------------------------

    def _start(self, start: Start) -> int:
        self.driver.listeners.unwatch(start.unit)
        instance = ToolInstance(self._placement.new_key(), self._specs[start.unit][0], start.serial)
        self._instances[start.serial] = instance
        self._newest[instance.name] = instance.started_at
        event = self.supervisor.say("starting", instance, digest=instance.digest[:12])
        self.remember(instance.name, state="starting")
        instance.life = self.supervisor.task(self._live(instance))
        return event

    async def _live(self, instance: ToolInstance, *, resume: bool = False, again: bool = False) -> None:
        """Bring an instance up and watch it to its end; one whose port was taken is started once more."""
        try:
            if resume:
                await self.supervisor.resume(self.driver, instance)
            else:
                await self.supervisor.start(self.driver, instance)
        except PxError as error:
            if error.extra.get("stage") == "port" and not (resume or again) and instance.wanted is None:
                await self._live_again(instance)
                return
            self.remember(instance.name, state="failed", reason=reason_of(error).value, failure=error.problem())
            self._perform(self.pool.start_failed(instance.name, instance.serial, clock.now()))
            return
        self.supervisor.became_ready(instance, cold_start_ms=instance.cold_start_ms)
        self.remember(instance.name, state="ready", reason=None, failure=None)
        self._perform(self.pool.ready(instance.name, instance.serial, clock.now()))
        if self.last_state(instance.name).drift_digest != instance.digest:
            self.supervisor.task(self._compare_schema(instance))
        await self._watch(instance)

    async def _live_again(self, instance: ToolInstance) -> None:
        """Start once more, on another port; the instance that failed is put away beside."""
        again = ToolInstance(self._placement.new_key(), instance.spec, instance.serial)
        again.asked_at, again.event, again.life = instance.asked_at, instance.event, instance.life
        self._instances[instance.serial] = again
        instance.serial, instance.life, instance.wanted = 0, None, Reason.REPLACED
        await self.supervisor.stop(self.driver, instance, Reason.REPLACED)
        await self._live(again, again=True)

    async def _watch(self, instance: ToolInstance) -> None:
        """Wait for the end of a ready instance; if nobody wanted it, say so and clear up."""
        try:
            await self.supervisor.wait(instance)
        except KeeperLostError:
            self.died(instance)
            raise
        if instance.wanted is None and not instance.over.is_set():
            self.died(instance)

    def died(self, instance: ToolInstance) -> None:
        """Have an instance put away that is of no use any more."""
        self._perform(self.pool.died(instance.name, instance.serial, clock.now()))

    def exceeded_runtime(self, instance: ToolInstance, run_id: str) -> None:
        """Take an instance out of use: a run on it took too long."""
        instance.wanted = instance.wanted or Reason.RUNTIME_LIMIT
        self.supervisor.say("runtime_limit", instance, Reason.RUNTIME_LIMIT, run=run_id)
        self._perform(self.pool.condemn(instance.name, instance.serial, clock.now()))

    def _gone(self, instance: ToolInstance) -> None:
        """Forget an instance of which nothing is left, and show how it ended."""
        name = instance.name
        if instance.started_at >= self._newest.get(name, 0.0) and instance.end is not None:
            died = instance.died and instance.ready_at is not None
            restarts = self.last_state(name).restarts + died
            failed = instance.error is not None and not isinstance(instance.error, KeeperLostError)
            shown = {} if failed else {"state": "cold", "reason": instance.end.reason.value}
            self.remember(name, restarts=restarts, **shown)
        if instance.serial:
            self._instances.pop(instance.serial, None)
            self._watch_port(name)
            self._perform(self.pool.gone(name, instance.serial, clock.now()))

    def _watch_port(self, name: str) -> None:
        """Start a cold tool for whoever connects to its port without asking us (as socket activation does)."""

        async def start() -> None:
            try:
                await self.warm(name)
            except PxError as error:  # of a start that failed the waiters are refused already
                _log.warning("not_started_for_its_port", unit=f"tool:{name}", detail=error.detail)
                if self.instance_of(name) is None:
                    self.driver.listeners.refuse_waiting(name)
                    self.driver.listeners.listen_again(name)
                    # Where waiters cannot be refused (macOS) they are there still: no faster than this.
                    asyncio.get_running_loop().call_later(PERIOD_SECONDS, self._watch_port, name)

        def connected() -> None:
            self.driver.listeners.unwatch(name)
            self.supervisor.task(start())

        if not self.pool.is_closed:
            self.driver.listeners.watch(name, connected)

    async def _compare_schema(self, instance: ToolInstance) -> None:
        if instance.upstream is None:
            return
        instance.is_asked = True
        found = await schema_drift(instance.upstream, dict(instance.spec.manifest))
        if instance.wanted is not None or instance.over.is_set():
            return  # it was going away while it was asked
        instance.is_asked = False
        self.remember(instance.name, drift=found, drift_digest=instance.digest)
        if found:
            self._events.publish("schema_drift", instance.unit, Reason.SCHEMA_DRIFT, places=list(found))
            _log.warning("schema_drift", unit=instance.unit, places=found)

    # -- requests --------------------------------------------------------------------------------------------

    async def acquire(self, spec: ToolSpec, timeout_seconds: float | None, keep_alive: float | None) -> Granted:
        """Wait for an instance of a tool; give it back with `release`.

        Args:
            spec: As the catalog has it now.
            timeout_seconds: How long to wait; None is as long as a place in line and a start may take.
            keep_alive: Seconds to keep the instance after this request; 0 not at all, -1 for ever, None as usual.

        Raises PxError: refused, or the start failed.
        """
        known = self._specs.get(spec.name)
        if known is None or known[0] is not spec:
            known = self._specs[spec.name] = spec, rules_of(spec)
            unpinned = self.last_state(spec.name).unpinned
            if spec.pinned and not unpinned and self.pool.pin_of(spec.name) is Pin.NONE:
                self._perform(self.pool.pin(spec.name, Pin.LRU, clock.now()))
        patience = timeout_seconds
        if patience is None:
            patience = self.config.pool.queue_timeout_seconds + spec.start_timeout_seconds
        self._tickets += 1
        ticket, now = self._tickets, clock.now()
        actions = self.pool.ask(Request(ticket, spec.name, known[1], now + patience, keep_alive), now)
        match actions:
            case [Grant(granted, _, serial, cold)] if granted == ticket and not cold:
                return Granted(ticket, self._instances[serial], None)
        waiter: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        try:
            self._perform(actions)
            return await waiter
        except BaseException:
            self._perform(self.pool.end(ticket, clock.now()))
            raise
        finally:
            del self._waiters[ticket]

    def release(self, granted: Granted) -> None:
        """Give an instance back; its age begins to count."""
        name, at = granted.instance.name, time.time()
        if name not in self._states or time.monotonic() - self._written.get(name, 0.0) >= REMEMBER_SECONDS:
            self.remember(name, last_used=at)
        else:
            self._states[name].last_used = at
        if actions := self.pool.end(granted.ticket, clock.now()):
            self._perform(actions)
            return
        slot, timer = self.pool.slot(name), self._timer
        keep = slot.keep_seconds if slot is not None else 0.0
        if timer is None or timer.when() > asyncio.get_running_loop().time() + keep:
            self._arm()  # this tool is the next one to become too old

    @asynccontextmanager
    async def lease(self, name: str, timeout_seconds: float | None = None) -> AsyncIterator[Granted]:
        """Hold a warm instance of a tool for as long as the context is open, for a client that talks to it directly.

        Raises:
            PxError: As `acquire`; UnknownUnitError, ConfigError for the name.
        """
        granted = await self.acquire(self.catalog.get(name), timeout_seconds, None)
        try:
            yield granted
        finally:
            self.release(granted)

    def run_begun(self, run: Run) -> int:
        """Return the id of the row of a run; the row follows."""
        number = self._ledger.next_number(RUNS.name)
        self._begun[number] = run
        if self._writes is None:
            self._writes = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._write_begun)
        return number

    def _write_begun(self) -> None:
        self._writes = None
        for number, run in self._begun.items():
            row = RunRow(number, run.spec.unit, run.begun_at, request_id=run.request.request_id)
            self._ledger.post(RUNS.insert(row))
        self._begun.clear()

    def run_ended(self, run: Run, error: BaseException | None) -> None:
        """Close the row of a run and publish its end; that it failed by its tool's fault is an event of its own."""
        outcome, kind, status = "completed", None, run.status
        if isinstance(error, PxError):
            outcome, kind, status = str(error.extra.get("reason") or "failed"), error.kind, error.status
            outcome = Reason.TIMEOUT.value if isinstance(error, TimedOutError) else outcome
        elif error is not None:
            outcome, kind = Reason.CANCELLED.value, "cancelled"
        seconds = asyncio.get_running_loop().time() - run.begun
        key, unit = run.instance.key if run.instance else None, run.spec.unit
        facts: dict[str, Any] = {"outcome": outcome, "error_kind": kind, "cold_start_ms": run.cold_start_ms}
        kept = {**facts, "ended_at": time.time(), "status": status, "duration_seconds": seconds, "instance": key}
        if self._begun.pop(run.row, None) is None:
            self._ledger.post(RUNS.update(run.row, "ended_at IS NULL", **kept))
        else:
            whole = RunRow(run.row, unit, run.begun_at, request_id=run.request.request_id, **kept)
            self._ledger.post(RUNS.insert(whole))
        self._events.publish("run", unit, instance=key, run=run.row, duration_seconds=round(seconds, 6), **facts)
        now = time.monotonic()
        lately = now - self._failed.get(unit, -math.inf) < FAILED_SECONDS
        if isinstance(error, PxError) and failures.is_the_tools(error) and not lately:
            self._failed[unit] = now
            ended = run.instance is not None and run.instance.over.is_set()
            about: dict[str, Any] = {"status": status, "kind": kind, "instance_ended": ended}
            self._events.publish("run_failed", unit, instance=key, run=run.row, **about)

    # -- control ---------------------------------------------------------------------------------------------

    async def warm(self, name: str, *, timeout_seconds: float | None = None) -> None:
        """Have a warm instance of a tool; returns when it is ready."""
        self.release(await self.acquire(self.catalog.get(name), timeout_seconds, None))

    async def stop(self, name: str, reason: Reason = Reason.STOPPED) -> StopReport:
        """Stop a tool, busy or not, and return when nothing of it is left.

        Raises:
            SurvivorsError: Something outlived it; `survivors` lists pid, name and start time.
            UnknownUnitError: There is no such tool.
        """
        instance = self.instance_of(name)
        if instance is None:
            self.catalog.entry(name)
        self._perform(self.pool.stop(name, reason, clock.now()))
        if instance is None:
            return StopReport("")
        await instance.stopped.wait()
        report = instance.report or StopReport(instance.key)
        if report.survivors:
            names = ", ".join(f"{each.name} ({each.pid})" for each in report.survivors)
            hint = "It is stopped again every few seconds; a process in uninterruptible sleep ends with its I/O."
            left = [{"pid": s.pid, "name": s.name, "start_time": s.start_time} for s in report.survivors]
            detail = f"Of tool:{name} this survived the stop: {names}."
            raise SurvivorsError(detail, hint=hint, unit=f"tool:{name}", survivors=left)
        return report

    async def pin(self, name: str, *, forever: bool = False) -> None:
        """Exempt a tool from LRU eviction, `forever` from age as well. Survives restarts of everything."""
        spec = self.catalog.get(name)
        await self._ledger.write(PINS.put(PinRow(spec.unit, forever, time.time())))
        self._perform(self.pool.pin(name, Pin.FOREVER if forever else Pin.LRU, clock.now()))
        self.remember(name, unpinned=False)
        self._events.publish("pinned", spec.unit, forever=forever)

    async def unpin(self, name: str) -> None:
        """Take a pin back, also one that the tool declares for itself."""
        self.catalog.entry(name)
        await self._ledger.write(PINS.delete(f"tool:{name}"))
        self._perform(self.pool.pin(name, Pin.NONE, clock.now()))
        self.remember(name, unpinned=True)
        self._events.publish("unpinned", f"tool:{name}")

    async def refresh(self) -> None:
        """Compare what is warm with the catalog: stale instances are replaced once idle, vanished tools stopped."""
        for slot in self.pool.slots():
            try:
                rules = rules_of(self.catalog.get(slot.unit))
            except ConfigError:
                continue  # a file that is being edited takes nothing down
            except UnknownUnitError:
                self._perform(self.pool.forget(slot.unit, clock.now()))
                continue
            if rules != slot.rules or not slot.is_known:  # each report looks at every slot: tell only what is new
                self._perform(self.pool.declare(slot.unit, rules, clock.now()))
        for tool in self.driver.listeners.tools():
            if self.pool.slot(tool) is None:
                try:
                    self.catalog.entry(tool)
                except UnknownUnitError:
                    await self.driver.listeners.drop(tool)

    async def _keep_up(self) -> None:
        """Look around every few seconds while something is warm; measure it where a memory budget is set."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            if self._instances:
                await self.refresh()
                if self.pool.bounds.memory_budget_bytes is not None:
                    keys = {instance.key: instance.name for instance in self._instances.values()}
                    stats = await self._placement.stat(tuple(keys))
                    sizes = {keys[key]: stat.rss_bytes for key, stat in stats.items()}
                    self._perform(self.pool.measured(sizes, clock.now()))

    def reconfigure(self, config: ToolsConfig) -> None:
        """Take new settings: bounds of the pool at once, the rest for what starts from now on."""
        self.config = self.driver.config = config
        self.zygotes.trim()
        self._perform(self.pool.bound(bounds_of(config.pool), clock.now()))

    def trial_driver(self, method: str) -> ToolDriver:
        """Return a driver for instances that are tried out beside the pool, with listening sockets of their own."""
        return ToolDriver(
            self.supervisor, self.catalog, self.config, self._environ, lambda _: None, f"listen:{method}:"
        )

    # -- what is remembered --------------------------------------------------------------------------------------

    def last_state(self, tool: str) -> LastState:
        """Return what is known of a tool beyond its present instance."""
        return self._states.get(tool, LastState())

    def remember(self, tool: str, **changes: Any) -> None:
        """Change what is known of a tool, and write it down."""
        state = self._states[tool] = msgspec.structs.replace(self.last_state(tool), **changes)
        self._written[tool] = time.monotonic()
        facts = {name: getattr(state, name) for name in _FACTS}
        row = UnitStateRow(
            f"tool:{tool}", state.state, time.time(), last_used=state.last_used, restarts=state.restarts, facts=facts
        )
        self._ledger.post(UNIT_STATES.put(row))

    # -- looking ---------------------------------------------------------------------------------------------

    def instance_of(self, name: str) -> ToolInstance | None:
        """Return the present instance of a tool, in whichever phase."""
        slot = self.pool.slot(name)
        return self._instances.get(slot.serial) if slot is not None else None

    def snapshot(self, name: str | None = None) -> tuple[ToolState, ...]:
        """Return the state of every tool, or of one; of tools that have gone, too, while something of them lives.

        Raises UnknownUnitError: there is no tool of that name.
        """
        entries = {entry.name: entry for entry in self.catalog.entries()}
        live = {instance.name for instance in self._instances.values()}
        if name is not None and name not in entries and name not in live:
            self.catalog.entry(name)
        names = sorted(entries.keys() | live) if name is None else [name]
        return tuple(self._state(each, entries.get(each)) for each in names)

    def import_seconds(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield what each package takes that a tool imports, of tools that have a zygote, which measured it."""
        for tool, recipe in sorted(self.driver.recipes.items()):
            if (zygote := self.zygotes.get(recipe)) is not None and zygote.import_seconds:
                yield tool, zygote.import_seconds

    def _state(self, name: str, entry: Entry | None) -> ToolState:
        slot, last, pin = self.pool.slot(name), self.last_state(name), self.pool.pin_of(name)
        declared = entry is not None and entry.spec is not None and entry.spec.pinned
        if pin is Pin.NONE and declared and not last.unpinned:
            pin = Pin.LRU
        cold = slot is None or slot.phase is Phase.COLD
        live = self._instances.get(slot.serial) if slot is not None and not cold else None
        word = ("failed" if last.failure else "cold") if slot is None or cold else slot.phase.value
        if slot is not None and slot.phase is Phase.READY and slot.in_flight:
            word = "busy"
        zygote = self.zygotes.get(self.driver.recipes.get(name))
        spawned = (f"its starts are not forked: {zygote.refused}",) if zygote and zygote.refused else ()
        drift = tuple(f"schema_drift: /schema differs from tool.json at {place}" for place in last.drift)
        port = self.driver.listeners.port_of(name)
        return ToolState(
            unit=f"tool:{name}",
            name=name,
            state=word,
            reason=last.reason if live is None else live.wanted.value if live.wanted else None,
            pid=live.pid if live else None,
            port=live.port or port if live else port,
            started_at=live.started_at if live else None,
            last_used=last.last_used,
            in_flight=len(slot.in_flight) if slot else 0,
            waiting=len(slot.line) if slot else 0,
            pinned=pin is not Pin.NONE,
            pin=pin,
            start_method=live.start_method if live else None,
            restarts=last.restarts,
            instance=live.key if live else None,
            cold_start_ms=live.cold_start_ms if live and live.ready_at else None,
            config_error=entry.error if entry else None,
            failure=last.failure,
            warnings=(entry.warnings if entry else ()) + drift + spawned,
            survivors=tuple(each.pid for each in live.report.survivors) if live and live.report else (),
            rss_bytes=slot.rss_bytes or None if slot else None,
        )
