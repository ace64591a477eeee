"""The warm tools: requests go to the pool, what it decides is performed, and what was seen is
remembered.

Decisions are made in `process.pool` and nowhere here; how an instance lives is the supervisor's. A
waiter always hears something: an instance, a refusal, or why the start failed.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import structlog

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import (
    ConfigError,
    KeeperLostError,
    KeeperTimeoutError,
    PxError,
    UnknownUnitError,
)
from supervisord_py.keeper import procfs
from supervisord_py.ledger.instances import PINS, PinRow, forget_unit
from supervisord_py.ledger.store import Ledger
from supervisord_py.process import clock
from supervisord_py.process.events import EventStream
from supervisord_py.process.instance import Phase, reason_of
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Reason, StopReport
from supervisord_py.process.pool import (
    Action,
    Bounds,
    Fail,
    Grant,
    Pin,
    Pool,
    Refusal,
    Refuse,
    Start,
    Stop,
)
from supervisord_py.process.supervisor import Supervisor
from supervisord_py.process.zygote_pool import ZygotePool
from supervisord_py.tools import failures
from supervisord_py.tools.catalog import Catalog, Entry
from supervisord_py.tools.driver import (
    GivenUp,
    ToolDriver,
    ToolInstance,
    ToolsConfig,
    ask_until_healthy,
    may_be_the_handover,
    with_plain_port,
)
from supervisord_py.tools.environment import find_interpreter, read_ahead
from supervisord_py.tools.learnt import Learnt, Message, merge
from supervisord_py.tools.manifest import MEBIBYTE, ToolSpec
from supervisord_py.tools.status import AFTER_FAILURE, AFTER_READY, LastStates, PlainPort, ToolState
from supervisord_py.tools.upstream import schema_drift

PERIOD_SECONDS = 5.0
QUEUE_SECONDS = 60.0  # bound of a place in line, where the request has none
END_SECONDS = 1.0
# without an answer, after which a tool is called unresponsive whose caller merely hung up
DOUBT_SECONDS = 1.0
LONGEST_TIMER_SECONDS = 60.0
"""The loop's clock stands still during suspend, the pool's does not: where nobody tells, look
again after that.
"""
_log = structlog.get_logger(__name__)


class Granted(msgspec.Struct, frozen=True):
    """A request's hold on an instance; `cold_start_ms` is None unless it waited for the start."""

    ticket: int
    instance: ToolInstance
    cold_start_ms: int | None
    keep_seconds: float = 0.0  # how long the instance is kept after it, at least


def bounds_of(settings: ToolsSettings) -> Bounds:
    budget = settings.memory_budget_mb and settings.memory_budget_mb * MEBIBYTE
    return Bounds(
        max(1, settings.warm_keep_max), budget, settings.queue_max, settings.evict == "cost"
    )


class Tools:
    """Starts, keeps and stops tools.

    `open` it where the loop runs; end it with `close` or `detach`.
    """

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        catalog: Catalog,
        config: ToolsConfig,
        events: EventStream,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.config = config
        self.catalog = catalog
        self.supervisor = Supervisor(placement, ledger, events)
        self.pool = Pool(bounds_of(config.settings))
        self.states = LastStates(ledger)
        self.events = events
        self.failed_at: dict[str, float] = {}  # by unit: when a failed run was last an event
        self.zygotes = ZygotePool(placement, "tool", lambda: self.config.zygotes)
        known = (self.supervisor, catalog, config, environ, self.zygotes)
        self.driver = ToolDriver(
            *known, self._gone, self._imported, lambda tool: self.states.of(tool).learnt
        )
        self._placement = placement
        self._ledger = ledger
        keeper = procfs.look(placement.caps.keeper_pid)
        # Names one life of the keeper's process, also over an upgrade in place.
        self.keeper_life = (
            f"{placement.caps.keeper_pid} {keeper.start_time if keeper is not None else 0}"
        )
        self._instances: dict[int, ToolInstance] = {}
        self._waiters: dict[int, asyncio.Future[Granted]] = {}
        self._specs: dict[str, ToolSpec] = {}  # as each was asked for last
        # by tool: a start that failed, whose waiters get another one
        self._retried: dict[str, ToolInstance] = {}
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- beginning and end -------------------------------------------------------------------------

    async def open(self) -> None:
        """Take over what the keeper holds; returns when every adopted ready tool serves again."""
        await self.states.read()
        for row in await PINS.find(self._ledger):
            if row.unit.startswith("tool:"):
                self._tell(
                    self.pool.pin,
                    row.unit.removeprefix("tool:"),
                    Pin.FOREVER if row.forever else Pin.LRU,
                )
        for instance in await self.supervisor.adopt(self.driver):
            self._adopted(instance)
        self.driver.listeners.on_stored = self._note_listener
        await asyncio.gather(*(self._recall(tool) for tool in tuple(self.states.by_tool)))
        self.supervisor.task(self.expect())
        self.supervisor.task(self.forget_removed())
        self.supervisor.task(self._keep_up())

    async def _recall(self, tool: str) -> None:
        """Listen for a cold tool again, where this keeper may have its socket: nothing is asked
        of the others.
        """
        state = self.states.of(tool)
        if self.instance_of(tool) is not None or state.listener not in {None, self.keeper_life}:
            return
        await self._placement.until_known(partial(self.driver.listeners.recall, tool))
        self._watch_port(tool)
        life = self.keeper_life if self.driver.listeners.has(tool) else ""
        if state.listener != life:
            self.states.remember(tool, listener=life)

    def _note_listener(self, tool: str) -> None:
        self.states.remember(tool, listener=self.keeper_life)

    async def forget_removed(self) -> None:
        """Drop pins and states of tools whose folders are gone.

        Does nothing while a directory cannot be read, or a tool's file is broken: its name may
        stand in there.
        """
        entries = self.catalog.entries()
        if not self.catalog.is_complete or any(entry.spec is None for entry in entries):
            return
        pins = await PINS.find(self._ledger)
        units = (row.unit.partition(":") for row in pins)
        remembered = {*self.states.by_tool, *(name for kind, _, name in units if kind == "tool")}
        for name in sorted(remembered - {entry.name for entry in entries}):
            if self.instance_of(name) is None:
                await self.forget(name)

    async def forget(self, name: str) -> None:
        """Drop what is remembered of a tool that was removed, its pin included: another one of
        its name begins anew.
        """
        self.states.forget(name)
        self._specs.pop(name, None)
        self.failed_at.pop(f"tool:{name}", None)
        self._tell(self.pool.pin, name, Pin.NONE)
        # `why` and `debug` look no further back than this event.
        self.events.publish("removed", f"tool:{name}")
        await self._ledger.write(forget_unit(f"tool:{name}"))

    def is_remembered(self, name: str) -> bool:
        return name in self.states.by_tool or self.pool.pin_of(name) is not Pin.NONE

    async def expect(self) -> None:
        """Prepare for the first starts after a boot or a resume; what an earlier control plane
        prepared is ended.

        What is pinned gets its zygote; what other tools import is read into memory.
        """
        await self.zygotes.end_left_over()
        for tool in self.snapshot():
            if imports := self.states.of(tool.name).imports:
                # its files may be broken by now; macOS reads nothing ahead
                with suppress(PxError, AttributeError):
                    spec = self.as_started(self.catalog.get(tool.name))
                    if tool.pinned:
                        await self.driver.expect(spec)
                    else:
                        python = find_interpreter(spec, self.config.settings.python)
                        await asyncio.to_thread(read_ahead, python, imports)

    def _imported(self, tool: str, message: Message) -> Learnt:
        state = self.states.of(tool)
        imports = tuple(dict.fromkeys((*state.imports, *message.modules)))
        learnt = merge(state.learnt, message)
        if len(imports) > len(state.imports) or learnt != state.learnt:
            self.states.remember(tool, imports=imports, learnt=learnt)
        return learnt

    def _adopted(self, instance: ToolInstance) -> None:
        """Count an adopted instance in and go on with it; a second one of its tool is stopped."""
        name, ready = instance.name, instance.ready_at is not None
        if self.pool.slot(name) is not None:
            self.supervisor.task(self.supervisor.stop(self.driver, instance, Reason.REPLACED))
            return
        instance.serial = self.pool.reserve_serial()
        self._instances[instance.serial] = instance
        self.states.remember(name, state=instance.phase.value)
        age = max(0.0, time.time() - (self.states.of(name).last_used or instance.started_at))
        instance.life = self.supervisor.task(
            self._watch(instance) if ready else self._live(instance)
        )
        now = clock.now()
        if ready and instance.doubted_at is not None:
            self._check_health(instance)
        known = (name, instance.serial, instance.spec.rules)
        self._perform(
            self.pool.adopt(
                *known, digest=instance.digest, last_used=now - age, ready=ready, now=now
            )
        )

    async def close(self) -> None:
        """Stop every tool, all at once; runs in flight hear of the shutdown.

        Returns when nothing is left, or when what is left has survived a stop: the keeper goes on
        with that.
        """
        self._tell(self.pool.close)
        for instance in tuple(self._instances.values()):
            await instance.stopped.wait()
        await self._let_go()

    async def detach(self) -> None:
        """End without stopping anything: another control plane will adopt the tools.

        Runs in flight are cut off.
        """
        for instance in tuple(self._instances.values()):
            for run in tuple(instance.runs):
                run.break_off(failures.cut_off(instance.spec))
        await self._let_go()

    async def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.states.write_used()
        await self.zygotes.close()
        await self.supervisor.close()
        for instance in self._instances.values():
            self.driver.let_go(instance)
        self.driver.listeners.close()

    # -- what the pool decides ---------------------------------------------------------------------

    def _tell(self, happened: Callable[..., list[Action]], *what: Any) -> None:
        self._perform(happened(*what, clock.now()))

    def _perform(self, actions: list[Action]) -> None:
        cause: int | None = None
        for action in sorted(actions, key=lambda each: not isinstance(each, Start)):
            match action:
                case Start():  # before the others: it is the cause of the evictions beside it
                    cause = self._start(action)
                case Stop(_, serial, reason):
                    instance = self._instances[serial]
                    if reason is Reason.EVICTED_LRU and cause is not None:
                        instance.event = cause
                    self.supervisor.task(self.supervisor.stop(self.driver, instance, reason))
                case Grant(ticket, _, serial, cold):
                    instance = self._instances[serial]
                    self._answer(
                        ticket, Granted(ticket, instance, instance.cold_start_ms if cold else None)
                    )
                case Refuse(ticket):
                    self._answer(ticket, self._refusal(action))
                case Fail(ticket, _, serial):
                    error = self._instances[serial].error or KeeperLostError(
                        "The start was given up."
                    )
                    self._answer(ticket, error.fresh())
        self._arm()

    def _answer(self, ticket: int, answer: Granted | PxError) -> None:
        # else it gave up in this moment
        if (waiter := self._waiters.get(ticket)) is not None and not waiter.done():
            waiter.set_exception(answer) if isinstance(answer, PxError) else waiter.set_result(
                answer
            )

    def _refusal(self, refuse: Refuse) -> PxError:
        return failures.refusal_error(
            refuse, self.config.settings, self.states.of(refuse.unit).failure
        )

    def _arm(self) -> None:
        """See to it that the pool is told of its next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (deadline := self.pool.next_deadline()) is not None:
            wait = min(max(0.0, deadline - clock.now()), LONGEST_TIMER_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(wait, self.tick)

    def tick(self) -> None:
        """Tell the pool the time: a deadline is over, or the machine has woken up."""
        self._tell(self.pool.tick)

    # -- lives of instances ------------------------------------------------------------------------

    def _start(self, start: Start) -> int:
        self.driver.listeners.unwatch(start.unit)
        spec = self.as_started(self._specs[start.unit])
        instance = ToolInstance(self._placement.new_key(), spec.unit, spec, start.serial)
        earlier = self._retried.pop(start.unit, None)
        if earlier is not None:  # the same cold start, told as one
            instance.event = earlier.event
            instance.asked_at = earlier.asked_at
        self._instances[start.serial] = instance
        self.states.remember(instance.name, state="starting")
        instance.life = self.supervisor.task(self._live(instance))
        return self.supervisor.say("starting", instance, digest=instance.digest[:12])

    async def _live(self, instance: ToolInstance) -> None:
        name = instance.name
        try:
            await self.supervisor.start(self.driver, instance)
        except PxError as error:
            if may_be_the_handover(instance):
                self._start_plainly(instance, error)
                return
            self._note_plain_port(instance, AFTER_FAILURE)
            self.states.remember(
                name, state="failed", reason=reason_of(error).value, failure=error.problem()
            )
            self._tell(self.pool.start_failed, name, instance.serial)
            return
        self._note_plain_port(instance, AFTER_READY)
        await self.supervisor.became_ready(instance, cold_start_ms=instance.cold_start_ms)
        self.states.remember(name, state="ready", reason=None, failure=None)
        self._tell(self.pool.ready, name, instance.serial)
        if self.states.of(name).drift_digest != instance.digest:
            self.supervisor.task(self._compare_schema(instance))
        await self._watch(instance)

    def as_started(self, spec: ToolSpec) -> ToolSpec:
        """Return what is started for a declaration: with a plain port where the handed-over
        socket did not do.
        """
        is_plain = self.states.of(spec.name).plain_port_of(spec.digest) is not PlainPort.NO
        return with_plain_port(spec) if is_plain and spec.listen == "handover" else spec

    def _start_plainly(self, instance: ToolInstance, error: PxError) -> None:
        """Have whoever waits for a failed start wait for one with a plain port, once.

        Only a start in handover comes here, and the next one is none, until the declaration
        changes.
        """
        name = instance.name
        self.states.remember(
            name,
            state="cold",
            plain_port=PlainPort.TRYING,
            plain_digest=instance.digest,
            plain_why=error.detail,
        )
        self.supervisor.say(
            "plain_port",
            instance,
            reason_of(error),
            detail=error.detail,
            hint=failures.plain_port_hint(instance.spec),
        )
        self._retried[name] = instance
        self._tell(self.pool.start_again, name, instance.serial)

    def _note_plain_port(
        self, instance: ToolInstance, after: Mapping[PlainPort, PlainPort]
    ) -> None:
        """Take the step that the end of a start means, if that start had a plain port in the
        place of the socket.
        """
        plain_port = self.states.of(instance.name).plain_port_of(instance.digest)
        if instance.spec.listen == "port" and plain_port in after:
            self.states.remember(instance.name, plain_port=after[plain_port])

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
        """Have an instance put away that is of no use any more; the runs on it hear why."""
        self._tell(self.pool.died, instance.name, instance.serial)

    def exceeded_runtime(self, instance: ToolInstance, run_id: str) -> None:
        instance.wanted = instance.wanted or Reason.RUNTIME_LIMIT
        self.supervisor.say("runtime_limit", instance, Reason.RUNTIME_LIMIT, run=run_id)
        self._tell(self.pool.condemn, instance.name, instance.serial)

    def doubt(self, instance: ToolInstance, *, timed_out: bool) -> None:
        """Have a tool asked whether it is healthy: a call of it was given up.

        `timed_out`: at the caller's deadline. The tool is not called ready before it has answered.
        A caller that merely hung up says less: then it is one second until that is so.
        """
        if timed_out and instance.doubted_at is None:
            instance.doubted_at = time.time()
        self._check_health(instance)

    def _check_health(self, instance: ToolInstance) -> None:
        if instance.given_up is None:
            instance.given_up = GivenUp()
            instance.health_check = self.supervisor.task(
                self._until_healthy(instance, instance.given_up)
            )

    async def _until_healthy(self, instance: ToolInstance, given_up: GivenUp) -> None:
        """Ask a ready tool for its health until it answers or ends.

        One that answers nothing, no run either, for the time that a run may take is stopped: the
        next call starts it anew.
        """
        assert instance.notify is not None
        assert instance.upstream is not None
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        healthy = asyncio.ensure_future(
            ask_until_healthy(instance, instance.notify, instance.upstream)
        )
        over = asyncio.ensure_future(instance.over.wait())
        try:
            if instance.doubted_at is not None:
                await self.supervisor.annotate(instance)
            await asyncio.wait(
                [healthy, over], timeout=DOUBT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not healthy.done() and not over.done():
                instance.doubted_at = instance.doubted_at or time.time()
                self.supervisor.say("unresponsive", instance, Reason.WATCHDOG)
                await self.supervisor.annotate(instance)
            patience = instance.spec.max_runtime_seconds or math.inf
            while not healthy.done() and not over.done():
                left = max(began_at, instance.heard_at) + patience - loop.time()
                if left <= 0:
                    instance.wanted = instance.wanted or Reason.WATCHDOG
                    self.died(instance)
                    return
                timeout = None if math.isinf(left) else left
                await asyncio.wait(
                    [healthy, over], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            given_up.over_at = loop.time()
            instance.given_up = None
            healthy.cancel()
            over.cancel()
            await asyncio.gather(healthy, over, return_exceptions=True)
        if instance.doubted_at is None or instance.wanted is not None or instance.over.is_set():
            return
        healthy.result()  # raises where its port is not its own any more: then it stays as it is
        instance.doubted_at = None
        # Who waits for it to be ready looks at its state with the next event.
        self.supervisor.say("responsive", instance)
        await self.supervisor.annotate(instance)

    def _gone(self, instance: ToolInstance) -> None:
        name = instance.name
        if instance.trial_env is not None:
            return
        # One that ends beside another, which was adopted or started since, says nothing of the
        # tool.
        if self.instance_of(name) in {None, instance} and instance.end is not None:
            died = instance.died and instance.ready_at is not None
            restarts = self.states.of(name).restarts + died
            failed = instance.error is not None and not isinstance(instance.error, KeeperLostError)
            shown = {} if failed else {"state": "cold", "reason": instance.end.reason.value}
            self.states.remember(name, restarts=restarts, **shown)
        if instance.serial:
            self._instances.pop(instance.serial, None)
            self._watch_port(name)
            self._tell(self.pool.gone, name, instance.serial)
            if self._retried.get(name) is instance:  # nobody waits any more, or others come first
                del self._retried[name]

    def _watch_port(self, name: str) -> None:
        """Start a cold tool for whoever connects to its port without asking us (as socket
        activation does).
        """

        def connected() -> None:
            self.driver.listeners.unwatch(name)
            self.supervisor.task(self._start_for_its_port(name))

        if not self.pool.is_closed:
            self.driver.listeners.watch(name, connected)

    async def _start_for_its_port(self, name: str) -> None:
        try:
            await self.warm(name)
        except PxError as error:  # of a start that failed the waiters are refused already
            _log.warning("not_started_for_its_port", unit=f"tool:{name}", detail=error.detail)
            if self.instance_of(name) is None:
                await self.driver.listeners.listen_again(name, refuse_waiting=True)
                # Where waiters cannot be refused (macOS) they are there still: no faster than this.
                asyncio.get_running_loop().call_later(PERIOD_SECONDS, self._watch_port, name)

    async def _compare_schema(self, instance: ToolInstance) -> None:
        assert instance.upstream is not None
        instance.is_asked = True
        found = await schema_drift(instance.upstream, dict(instance.spec.manifest))
        # it may have broken off because the tool ended, of which the keeper tells a moment later
        if found:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await instance.over.wait()
        if instance.wanted is not None or instance.over.is_set():
            return  # it was going away while it was asked
        instance.is_asked = False
        self.states.remember(instance.name, drift=found, drift_digest=instance.digest)
        if found:
            self.events.publish(
                "schema_drift", instance.unit, Reason.SCHEMA_DRIFT, places=list(found)
            )
            _log.warning("schema_drift", unit=instance.unit, places=found)

    # -- requests ----------------------------------------------------------------------------------

    async def acquire(
        self, spec: ToolSpec, timeout_seconds: float | None, keep_alive: float | None
    ) -> Granted:
        """Wait for an instance of a tool, as the catalog has it now; give it back with `release`.

        At most for `timeout_seconds`; None: as long as a place in line and a start may take.
        `keep_alive`: as of a run. Raises PxError: refused, or the start failed.
        """
        if self._specs.get(spec.name) is not spec:
            self._specs[spec.name] = spec
            unpinned = self.states.of(spec.name).unpinned
            if spec.pinned and not unpinned and self.pool.pin_of(spec.name) is Pin.NONE:
                self._tell(self.pool.pin, spec.name, Pin.LRU)
        starts = 2 if spec.listen == "handover" else 1  # the second one with a plain port
        patience = (
            QUEUE_SECONDS + starts * spec.start_timeout_seconds
            if timeout_seconds is None
            else timeout_seconds
        )
        self._tickets += 1
        ticket, now = self._tickets, clock.now()
        actions = self.pool.ask(ticket, spec.name, spec.rules, now + patience, keep_alive, now=now)
        match actions:
            case [Grant(granted, _, serial, cold)] if granted == ticket and not cold:
                keep = spec.warm_keep_seconds if keep_alive is None else keep_alive
                return Granted(ticket, self._instances[serial], None, keep)
        waiter: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        try:
            self._perform(actions)
            async with asyncio.timeout(patience):
                return await waiter
        except BaseException as error:
            slot = self.pool.slot(spec.name)
            is_starting = slot is not None and slot.phase is Phase.STARTING
            self._tell(self.pool.end, spec.name, ticket)
            if not isinstance(error, TimeoutError):
                raise
            refusal = Refusal.DEADLINE_STARTING if is_starting else Refusal.DEADLINE
            raise self._refusal(Refuse(ticket, spec.name, refusal)) from None
        finally:
            del self._waiters[ticket]

    def release(self, granted: Granted) -> None:
        """Give an instance back; its age begins to count."""
        name, timer, loop = granted.instance.spec.name, self._timer, asyncio.get_running_loop()
        self.states.use(name)
        actions = self.pool.end(name, granted.ticket, clock.now())
        if actions or timer is None or timer.when() > loop.time() + granted.keep_seconds:
            self._perform(actions)  # at least this tool is the next one to become too old

    # -- control -----------------------------------------------------------------------------------

    async def warm(self, name: str, *, timeout_seconds: float | None = None) -> None:
        """Return once a tool is ready.

        Raises PxError: it did not start, or does not answer any more.
        """
        deadline = clock.now() + (math.inf if timeout_seconds is None else timeout_seconds)
        granted = await self.acquire(self.catalog.get(name), timeout_seconds, None)
        instance = granted.instance
        try:
            if instance.doubted_at is not None and instance.health_check is not None:
                patience = min(deadline - clock.now(), instance.spec.start_timeout_seconds)
                await asyncio.wait([instance.health_check], timeout=max(0.0, patience))
            if instance.doubted_at is not None and not instance.over.is_set():
                raise failures.unresponsive(instance.spec, instance.doubted_at)
        finally:
            self.release(granted)

    async def stop(self, name: str, reason: Reason = Reason.STOPPED) -> StopReport:
        """Stop a tool, busy or not, and return when nothing of it is left.

        Raises SurvivorsError: something outlived it, `survivors` lists pid, name, start time;
        UnknownUnitError; KeeperTimeoutError: the keeper does not answer, so it is unknown whether
        anything is left; the stop goes on.
        """
        instance = self.instance_of(name)
        if instance is None:
            self.catalog.entry(name)
        self._tell(self.pool.stop, name, reason)
        if instance is None:
            return StopReport()
        await self._placement.unless_silent(
            instance.stopped.wait(), f"{instance.unit} stopped", unit=instance.unit
        )
        if instance.report.survivors:
            raise failures.survived(instance.unit, instance.report)
        return instance.report

    async def pin(self, name: str, pin: Pin) -> None:
        """Exempt a tool from eviction, or take that back, also a pin that it declares for itself.

        Survives restarts of everything. Raises UnknownUnitError.
        """
        unit, forever = f"tool:{self.catalog.entry(name).name}", pin is Pin.FOREVER
        await self._ledger.write(
            PINS.delete(unit) if pin is Pin.NONE else PINS.put(PinRow(unit, forever, time.time()))
        )
        self._tell(self.pool.pin, name, pin)
        self.states.remember(name, unpinned=pin is Pin.NONE)
        await self._ledger.flush()  # who is told so may rely on it, also when we are killed now
        if pin is Pin.NONE:
            self.events.publish("unpinned", unit)
        else:
            self.events.publish("pinned", unit, forever=forever)

    async def refresh(self) -> None:
        """Compare what is warm with the catalog: stale instances are replaced once idle,
        vanished tools stopped.
        """
        for name in {*self.driver.listeners.ports, *(slot.unit for slot in self.pool.slots())}:
            slot = self.pool.slot(name)
            try:
                rules = self.catalog.get(name).rules
            except ConfigError:
                continue  # a file that is being edited takes nothing down
            except UnknownUnitError:
                if slot is not None:
                    self._tell(self.pool.forget, name)
                else:
                    await self.driver.listeners.drop(name)
                continue
            # Each report looks at every slot: tell only what is new.
            if slot is not None and (rules != slot.rules or not slot.is_known):
                self._tell(self.pool.declare, name, rules)

    async def _keep_up(self) -> None:
        """Look around every few seconds while something is warm; measure it where a memory
        budget is set.
        """
        while True:
            await clock.tick(PERIOD_SECONDS)
            self.states.write_used()
            if self._instances:
                await self.refresh()
                if self.pool.bounds.memory_budget_bytes is not None:
                    keys = {instance.key: instance.name for instance in self._instances.values()}
                    # Without an answer there is nothing to decide: the next round measures again.
                    with suppress(KeeperTimeoutError):
                        stats = await self._placement.stat(tuple(keys))
                        self._tell(
                            self.pool.measured,
                            {keys[key]: stat.rss_bytes for key, stat in stats.items()},
                        )

    def reconfigure(self, config: ToolsConfig) -> None:
        """Take new settings: bounds of the pool at once, the rest for what starts from now on."""
        self.config = self.driver.config = config
        self.zygotes.trim()
        self._tell(self.pool.bound, bounds_of(config.settings))

    # -- looking -----------------------------------------------------------------------------------

    def instance_of(self, name: str) -> ToolInstance | None:
        slot = self.pool.slot(name)
        return self._instances.get(slot.serial) if slot is not None else None

    def snapshot(self, name: str | None = None) -> tuple[ToolState, ...]:
        """Return the state of every tool, or of one; of tools that have gone, too, while
        something of them lives.
        """
        # Of two folders with one name the first counts, as in a start.
        entries = {entry.name: entry for entry in reversed(self.catalog.entries())}
        live = {instance.name for instance in self._instances.values()}
        names = sorted(entries.keys() | live) if name is None else [name]
        return tuple(self._state(each, entries.get(each)) for each in names)

    def _state(self, name: str, entry: Entry | None) -> ToolState:
        live = self.instance_of(name)
        state = ToolState(name, entry, self.states.of(name), self.pool.slot(name), live)
        state.port = state.port or self.driver.listeners.port_of(name)
        state.pinned = state.pinned or self.pool.pin_of(name) is not Pin.NONE
        limit = self._import_limit(name)
        if limit is not None:
            state.warnings.append(limit)
        return state

    def _import_limit(self, name: str) -> str | None:
        """Say which imports of a tool are not done ahead, and why; None where all are, or
        nothing is known of it.
        """
        live = self.instance_of(name)
        finding = self.zygotes.finding(live.recipe if live is not None else None)
        if finding is not None and not finding.usable:
            return f"its starts are not forked: {finding.why}"
        if finding is not None:
            return f"its starts are forked without the imports from {finding.why}"
        learnt = self.states.of(name).learnt
        if learnt is not None and learnt.change:
            return f"its starts are forked without the imports from {learnt.change}"
        return None

    def import_limits(self) -> Iterator[tuple[str, str]]:
        """Yield the tools of which not everything is imported ahead, and why."""
        for name in sorted(self.states.by_tool):
            limit = self._import_limit(name)
            if limit is not None:
                yield name, limit

    def import_seconds(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield what each package takes that a warm tool imports, where it has a zygote, which
        measured it.
        """
        for instance in self._instances.values():
            zygote = self.zygotes.get(instance.recipe)  # which may import for other tools, too
            own = {module.partition(".")[0] for module in self.states.of(instance.name).imports}
            measured = zygote.import_seconds if zygote is not None else {}
            if seconds := {package: measured[package] for package in measured if package in own}:
                yield instance.name, seconds
