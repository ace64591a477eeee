"""The warm pool at work: takes requests to the warm set and performs what it decides. One per daemon.

Law: decisions are made in `warm_set` and nowhere here. Every task belongs to one group that `close` or `detach` ends;
a waiter always hears something: an instance, a refusal, or why the start failed.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import (
    ConfigError,
    InterruptedRunError,
    KeeperLostError,
    PxError,
    SurvivorsError,
    UnknownUnitError,
)
from supervisord_py.ledger import pins
from supervisord_py.process import clock
from supervisord_py.process.spec import Reason, StopReport
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving import warm_events as ev
from supervisord_py.tools.serving.adoption import Adoption
from supervisord_py.tools.serving.chronicle import Chronicle
from supervisord_py.tools.serving.failure import refusal_error
from supervisord_py.tools.serving.instance import Granted, Instance, Lease, bounds_of, rules_of
from supervisord_py.tools.serving.listeners import Listeners
from supervisord_py.tools.serving.lives import Lives
from supervisord_py.tools.serving.startup import StderrTails, Surroundings
from supervisord_py.tools.serving.tool_state import ToolState, tool_state
from supervisord_py.tools.serving.warm_events import Pin
from supervisord_py.tools.serving.warm_set import WarmSet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.placement import Placement
    from supervisord_py.tools.catalog import Catalog, Entry
    from supervisord_py.tools.config import ToolsConfig
    from supervisord_py.tools.manifest import ToolSpec

PERIOD_SECONDS = 2.0
LONGEST_TIMER_SECONDS = 60.0
"""The loop's clock stands still during suspend, the pool's does not: look at it again after that at the latest."""
_log = structlog.get_logger(__name__)


class Launcher:
    """Starts, keeps and stops tools. `open` it where the loop runs; end it with `close` or `detach`."""

    def __init__(
        self,
        placement: Placement,
        ledger: Ledger,
        catalog: Catalog,
        config: ToolsConfig,
        events: EventStream,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.catalog = catalog
        self.chronicle = Chronicle(ledger, events)
        self.listeners = Listeners(placement, config.listen_backlog)
        self.tails = StderrTails(placement, config.stderr_tail_bytes)
        self.warm_set = WarmSet(bounds_of(config.pool))
        self._placement = placement
        self._ledger = ledger
        environ = os.environ if environ is None else environ
        self.around = Surroundings(
            placement, self.listeners, self.chronicle, config, self.tails, environ, self.run_task
        )
        self._lives = Lives(self.around, self)
        self._adoption = Adoption(self.around, self._lives, self)
        self._instances: dict[int, Instance] = {}
        self._waiters: dict[int, asyncio.Future[Granted]] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup
        self._owner: asyncio.Task[None] | None = None

    # -- beginning and end -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take over what the keeper holds; returns when every adopted ready tool serves again."""
        grouped = asyncio.Event()
        self._owner = asyncio.create_task(self._hold_group(grouped), name="launcher")
        await grouped.wait()
        await self.chronicle.open()
        for row in await pins.everything(self._ledger):
            if row.unit.startswith("tool:"):
                pin = Pin.FOREVER if row.forever else Pin.LRU
                self.report(ev.PinSet(row.unit.removeprefix("tool:"), pin))
        await self._adoption.adopt_all()
        self.run_task(self._keep_up())

    async def _hold_group(self, grouped: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as self._group:
            grouped.set()
            await asyncio.Event().wait()  # until `_let_go` cancels the group with all that is in it

    async def close(self) -> None:
        """Stop every tool, all at once; runs in flight hear of the shutdown.

        Returns when nothing is left, or when what is left has survived a stop: the keeper goes on with that.
        """
        self.report(ev.Closed())
        for instance in tuple(self._instances.values()):
            await instance.stopped.wait()
        await self._let_go()

    async def detach(self) -> None:
        """End without stopping anything: another control plane will adopt the tools. Runs in flight are cut off."""
        for instance in tuple(self._instances.values()):
            for visit in tuple(instance.visits):
                visit.interrupt(
                    InterruptedRunError(
                        "The control plane is being replaced; the tool itself goes on.",
                        hint="Ask again.",
                        unit=instance.spec.unit,
                    )
                )
        await self._let_go()

    async def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.chronicle.flush()
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait([self._owner])
        for instance in self._instances.values():
            if instance.notify is not None:
                instance.notify.close()
            if instance.upstream is not None:
                await instance.upstream.close()
        self.listeners.close()

    # -- the pool's own port (lives.Pool) --------------------------------------------------------------------

    def run_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something in the launcher's group; what it raises is logged and harms nothing else."""
        task = self._group.create_task(_guarded(work))
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, nobody else would
        return task

    def report(self, event: ev.Event) -> None:
        """Take an event to the warm set and perform what it decides."""
        instructions = self.warm_set.apply(event, clock.now())
        cause: int | None = None
        for instruction in instructions:
            if isinstance(instruction, ev.Start):
                cause = self._start(instruction)
        for instruction in instructions:
            self._perform(instruction, cause)
        self._arm()

    def gone(self, instance: Instance) -> None:
        """Forget an instance of which nothing is left."""
        self._instances.pop(instance.serial, None)
        self.report(ev.Gone(instance.spec.name, instance.serial))

    def adopt(self, instance: Instance, event: ev.Adopted) -> None:
        """Count an adopted instance in."""
        self._instances[instance.serial] = instance
        self.report(event)

    def _arm(self) -> None:
        deadline = self.warm_set.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            delay = min(max(0.0, deadline - clock.now()), LONGEST_TIMER_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(delay, self.report, ev.TimePassed())

    def _perform(self, instruction: ev.Instruction, cause: int | None) -> None:
        match instruction:
            case ev.Start():
                pass  # performed before the others: it is the cause of the evictions beside it
            case ev.Stop(_, serial, reason):
                self._stop(self._instances[serial], reason, cause)
            case ev.Grant(ticket, _, serial, cold):
                self._settle(ticket, Granted(ticket, self._instances[serial], cold))
            case ev.Refuse():
                last = self.chronicle.standing(instruction.tool).failure
                self._settle(instruction.ticket, refusal_error(instruction, self.config.pool, last))
            case ev.Fail(ticket, _, serial):
                error = self._instances[serial].failure or KeeperLostError("The start was given up.")
                self._settle(ticket, failure.fresh(error))

    def _settle(self, ticket: int, result: Granted | PxError) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is None or waiter.done():
            return  # it gave up in this very moment, and says so itself
        if isinstance(result, Granted):
            waiter.set_result(result)
        else:
            waiter.set_exception(result)

    def _start(self, start: ev.Start) -> int:
        spec = self._specs[start.tool]
        instance = Instance(
            serial=start.serial,
            key=self._placement.new_key(),
            spec=spec,
            started_at=time.time(),
            asked_at=asyncio.get_running_loop().time(),
        )
        self._instances[start.serial] = instance
        event = self.chronicle.say("starting", instance, digest=spec.digest[:12])
        self.chronicle.update(spec.name, state="starting")
        instance.life = self.run_task(self._lives.live(instance))
        return event

    def _stop(self, instance: Instance, reason: Reason | None, cause: int | None) -> None:
        if reason is Reason.EVICTED_LRU and cause is not None:
            instance.event = cause
        self.run_task(self._lives.end(instance, reason))

    # -- requests --------------------------------------------------------------------------------------------

    async def acquire(self, spec: ToolSpec, timeout_seconds: float | None, keep_alive: float | None) -> Granted:
        """Wait for an instance of a tool; give it back with `release`.

        Args:
            spec: As the catalog has it now.
            timeout_seconds: How long to wait; None is as long as a place in line and a start may take.
            keep_alive: Seconds to keep the instance after this request; 0 not at all, -1 for ever, None as usual.

        Raises:
            PxError: refused, or the start failed.
        """
        self._know(spec)
        pool = self.config.pool
        patience = (
            pool.queue_timeout_seconds + spec.start_timeout_seconds if timeout_seconds is None else timeout_seconds
        )
        self._tickets += 1
        ticket = self._tickets
        waiter: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        try:
            self.report(ev.Asked(ticket, spec.name, rules_of(spec), clock.now() + patience, keep_alive))
            return await waiter
        except BaseException:
            self.report(ev.GaveUp(ticket))
            raise
        finally:
            del self._waiters[ticket]

    def release(self, granted: Granted) -> None:
        """Give an instance back; its age begins to count."""
        self.chronicle.used(granted.instance.spec.name, time.time())
        self.report(ev.Released(granted.ticket))

    def _know(self, spec: ToolSpec) -> None:
        if self._specs.get(spec.name) is not spec:
            self._specs[spec.name] = spec
            self._pin_declared(spec)

    def _pin_declared(self, spec: ToolSpec) -> None:
        """Obey the pin that a tool declares for itself, unless somebody took it back or set a stronger one."""
        unpinned = self.chronicle.standing(spec.name).unpinned
        if spec.pinned and not unpinned and self.warm_set.pin_of(spec.name) is Pin.NONE:
            self.report(ev.PinSet(spec.name, Pin.LRU))

    @asynccontextmanager
    async def lease(
        self, name: str, *, timeout_seconds: float | None = None, keep_alive: float | None = None
    ) -> AsyncIterator[Lease]:
        """Hold a warm instance of a tool for as long as the context is open.

        Raises:
            PxError: as `acquire`; UnknownUnitError, ConfigError for the name.
        """
        granted = await self.acquire(self.catalog.get(name), timeout_seconds, keep_alive)
        instance = granted.instance
        cold = instance.cold_start_ms if granted.cold else None
        try:
            yield Lease("127.0.0.1", instance.port, instance.pid, instance.key, cold, instance.over)
        finally:
            self.release(granted)

    # -- steering --------------------------------------------------------------------------------------------

    async def warm(self, name: str, *, timeout_seconds: float | None = None) -> None:
        """Have a warm instance of a tool; returns when it is ready."""
        async with self.lease(name, timeout_seconds=timeout_seconds):
            pass

    async def stop(self, name: str, reason: Reason = Reason.STOPPED) -> StopReport:
        """Stop a tool, busy or not, and return when nothing of it is left.

        Raises:
            SurvivorsError: something outlived it; `survivors` lists pid, name and start time.
            UnknownUnitError: there is no such tool.
        """
        instance = self.instance_of(name)
        if instance is None:
            self.catalog.entry(name)
            self.report(ev.StopAsked(name, reason))
            return StopReport("")
        self.report(ev.StopAsked(name, reason))
        await instance.stopped.wait()
        report = instance.report or StopReport(instance.key)
        if report.survivors:
            names = ", ".join(f"{each.name} ({each.pid})" for each in report.survivors)
            raise SurvivorsError(
                f"Of tool:{name} this survived the stop: {names}.",
                hint="It is stopped again every few seconds; a process in uninterruptible sleep ends with its I/O.",
                unit=f"tool:{name}",
                survivors=[{"pid": s.pid, "name": s.name, "start_time": s.start_time} for s in report.survivors],
            )
        return report

    async def pin(self, name: str, *, forever: bool = False) -> None:
        """Exempt a tool from LRU eviction, `forever` from age as well. Survives restarts of everything."""
        spec = self.catalog.get(name)
        await pins.pin(self._ledger, pins.Pin(spec.unit, forever, time.time()))
        self.report(ev.PinSet(name, Pin.FOREVER if forever else Pin.LRU))
        self.chronicle.update(name, unpinned=False)
        self.chronicle.say_of_tool("pinned", name, forever=forever)

    async def unpin(self, name: str) -> None:
        """Take a pin back, also one that the tool declares for itself."""
        self.catalog.entry(name)
        await pins.unpin(self._ledger, f"tool:{name}")
        self.report(ev.PinSet(name, Pin.NONE))
        self.chronicle.update(name, unpinned=True)
        self.chronicle.say_of_tool("unpinned", name)

    async def refresh(self) -> None:
        """Compare what is warm with the catalog: stale instances are replaced once idle, vanished tools stopped."""
        for slot in self.warm_set.slots():
            try:
                rules = rules_of(self.catalog.get(slot.tool))
            except ConfigError:
                continue  # a file that is being edited takes nothing down
            except UnknownUnitError:
                self.report(ev.Forgotten(slot.tool))
                continue
            if rules != slot.rules or not slot.is_known:  # each report looks at every slot: tell only what is new
                self.report(ev.Declared(slot.tool, rules))
        for tool in self.listeners.tools():
            if self.warm_set.slot(tool) is None and not self._is_known(tool):
                await self.listeners.drop(tool)

    def _is_known(self, tool: str) -> bool:
        try:
            self.catalog.entry(tool)
        except UnknownUnitError:
            return False
        return True

    async def _keep_up(self) -> None:
        """Look around every two seconds while something is warm; measure it where a memory budget is set."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            if self._instances:
                await self.refresh()
                if self.warm_set.bounds.memory_budget_bytes is not None:
                    await self._measure()

    async def _measure(self) -> None:
        """Tell the warm set how large the trees are."""
        keys = {instance.key: instance.spec.name for instance in self.instances()}
        try:
            stats = await self._placement.stat(tuple(keys))
        except KeeperLostError:
            return
        self.report(ev.Measured(tuple((keys[key], stat.rss_bytes) for key, stat in stats.items())))

    def reconfigure(self, config: ToolsConfig) -> None:
        """Take new settings: bounds of the pool at once, the rest for what starts from now on."""
        self.config = config
        self.around.config = config
        self.report(ev.Bounded(bounds_of(config.pool)))

    # -- looking ---------------------------------------------------------------------------------------------

    def instance_of(self, name: str) -> Instance | None:
        """Return the present instance of a tool, in whichever phase."""
        slot = self.warm_set.slot(name)
        return self._instances.get(slot.serial) if slot is not None else None

    def instances(self) -> tuple[Instance, ...]:
        """Return every present instance."""
        return tuple(self._instances.values())

    def snapshot(self, name: str | None = None) -> tuple[ToolState, ...]:
        """Return the state of every tool, or of one; of tools that have gone, too, while something of them lives.

        Raises:
            UnknownUnitError: there is no tool of that name.
        """
        entries = {entry.name: entry for entry in self.catalog.entries()}
        live = {instance.spec.name for instance in self._instances.values()}
        if name is not None and name not in entries and name not in live:
            self.catalog.entry(name)
        names = sorted(entries.keys() | live) if name is None else [name]
        return tuple(self._state(each, entries.get(each)) for each in names)

    def _state(self, name: str, entry: Entry | None) -> ToolState:
        slot = self.warm_set.slot(name)
        return tool_state(
            name,
            slot,
            self.chronicle.standing(name),
            self._instances.get(slot.serial) if slot else None,
            port=self.listeners.port_of(name),
            pin=self._pin(name, entry),
            config_error=entry.error if entry else None,
            warnings=entry.warnings if entry else (),
        )

    def _pin(self, name: str, entry: Entry | None) -> Pin:
        declared = entry is not None and entry.spec is not None and entry.spec.pinned
        pin = self.warm_set.pin_of(name)
        if pin is Pin.NONE and declared and not self.chronicle.standing(name).unpinned:
            return Pin.LRU
        return pin


async def _guarded(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except KeeperLostError:
        _log.warning("keeper_lost")
    except Exception:
        _log.exception("launcher_task_failed")
