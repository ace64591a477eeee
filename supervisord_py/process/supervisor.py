"""How an instance lives, whatever its kind: started, adopted, watched, stopped to the last process,
recorded.

Laws:
- The row of an instance is written before its process is spawned; the keeper's note and the events
  follow.
- *Stopped* means that the whole tree is gone. An instance whose tree cannot be ended stays in the
  stopping phase, so that no second copy is started beside it; its stop is tried again, and what
  survives is named.
- A keeper that does not answer leaves an instance *unknown*: it stays starting or stopping, its
  start or stop is asked for again until the keeper answers or is lost, and then it is completed.
- The end is in the ledger before the keeper forgets the instance, and is published in one breath
  with `Driver.gone`: whoever hears of it finds the final state.
- What the keeper holds at the start is adopted if its note is understood and its driver wants it;
  everything else of ours is stopped. What ended meanwhile is recorded by the same `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from supervisord_py.errors import (
    KeeperLostError,
    OverloadedError,
    PxError,
    StartFailedError,
)
from supervisord_py.keeper import procfs
from supervisord_py.ledger.instances import became_ready
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.instance import (
    Instance,
    Note,
    Phase,
    read_note,
    reason_of,
    stopping_tag,
)
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.logs import LogReader, Stream
from supervisord_py.process.model import Child, ChildSpec, ExitRecord, Identity, Reason

TRY_AGAIN_SECONDS = 5.0
DRAIN_SECONDS = 0.5  # how long a failure waits for the last words of a tree that is slow to end
TAIL_BYTES = 64 * 1024
RESERVE = 16  # a start needs this many free descriptors, or it is refused
SHORT = frozenset({errno.EMFILE, errno.ENFILE})  # what the system says when there are none left
_log = structlog.get_logger(__name__)
# the instances of one kind
Kind_contra = TypeVar("Kind_contra", bound=Instance, contravariant=True)


class Driver(Protocol[Kind_contra]):
    """What a kind of unit adds to the mechanism."""

    kind: str

    async def prepare(self, instance: Kind_contra) -> ChildSpec | None:
        """Return what is to be spawned; takes what the instance needs (`release` gives it back).
        May raise PxError.

        None where another server has its process: then `ready` starts it.
        """

    async def ready(self, instance: Kind_contra) -> None:
        """Return when it may take work; raise the error that every waiter of the start is to
        see.
        """

    def revive(self, child: Child, note: Note | None) -> Any:
        """Return the instance of a child that the keeper holds, also of one that is not wanted any
        more.

        None for one of which somebody else takes care.
        """

    async def adopt(self, instance: Kind_contra, note: Note) -> bool:
        """Say whether to go on with a living child: its unit still exists, and is reachable."""
        return False

    def fail_waiters(self, instance: Kind_contra) -> None:
        """Tell whoever works on it that it ended (`instance.end`), or that it is about to
        (`instance.wanted`).
        """

    async def release(self, instance: Kind_contra) -> None:
        """Give back what the instance held besides its process."""

    def gone(self, instance: Kind_contra) -> None:
        """Forget it: nothing is left. Called in one breath with the event of its end."""


class Supervisor:
    """The one owner of rows, notes, events and ends of instances."""

    def __init__(self, placement: KeeperClient, ledger: Ledger, events: EventStream) -> None:
        self.placement = placement
        self._ledger = ledger
        self._events = events
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # -- tasks -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel all tasks.

        The children stay with the keeper, for the next control plane or for its own shutdown.
        """
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def task(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Run something until `close`; what it raises is logged and harms nothing else."""
        task = asyncio.create_task(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # cancelled before its first step, nobody else would
        task.add_done_callback(lambda _: work.close())
        if self._is_closed:
            task.cancel()
        return task

    def say(
        self,
        event: str,
        instance: Instance,
        reason: Reason | None = None,
        *,
        where: bool = False,
        leads_on: bool = True,
        **facts: Any,
    ) -> int:
        """Publish an event about an instance; its cause is the one before it, unless `cause` is
        given.

        `where`: with its pid, and its port where it has one. `leads_on`: it is the cause of the
        next one.
        """
        event, cause = instance.words.get(event, event), facts.pop("cause", instance.event)
        if not event:
            return instance.event or 0
        place = (
            {"pid": instance.pid, **({"port": instance.port} if instance.port else {})}
            if where
            else {}
        )
        facts = {**instance.facts(), **place, **facts}
        number = self._events.publish(
            event, instance.unit, reason, instance=instance.key, cause=cause, **facts
        )
        if leads_on:
            instance.event = number
        return number

    # -- up ----------------------------------------------------------------------------------------

    async def start(self, driver: Driver[Kind_contra], instance: Kind_contra) -> None:
        """Bring an instance up, or go on with an adopted one; returns when it is ready.

        `stop` it afterwards, also when it failed.

        Raises PxError: why it did not come up, with evidence; `instance.error` is the same.
        """
        try:
            if instance.child is None:
                check_room(instance.unit)
                spec = await driver.prepare(instance)
                instance.is_ours = spec is not None
                if spec is not None:
                    await self._spawn(instance, spec)
            await driver.ready(instance)
            instance.ready_at, instance.phase = time.time(), Phase.READY
        except PxError as error:
            raise self._failed(instance, error) from error
        except OSError as error:
            raise self._failed(instance, start_error(instance.unit, error)) from error
        except Exception as error:
            _log.exception("start_broke", unit=instance.unit)
            broken = StartFailedError(f"pxd failed: {error!r}", unit=instance.unit)
            raise self._failed(instance, broken) from error

    async def _spawn(self, instance: Instance, spec: ChildSpec) -> None:
        await self._ledger.write(instance.starting())
        spec = msgspec.structs.replace(
            spec, tag=instance.note(), stop_grace_seconds=instance.stop_seconds
        )
        # The key makes a repetition safe: a keeper that has started it already answers with the
        # same child.
        child = await self.placement.until_known(lambda: instance.spawn(self.placement, spec))
        instance.child = child
        instance.started_at = child.started_at
        self.say("spawned", instance, where=True)
        # until then the keeper says who it is, else the child's mark
        self._ledger.post(instance.spawned(child))

    async def became_ready(self, instance: Instance, **facts: Any) -> None:
        """Have the keeper know that an instance takes work, then tell everybody.

        Give it to nobody before: the next control plane tells by that an end from one of a start.
        Give it out at once when this returns: who waits for the event looks at the state then, and
        no other event follows.
        """
        with contextlib.suppress(KeeperLostError):  # whoever waits for its end is told
            await self.annotate(instance)
        self.say("ready", instance, where=True, **facts)
        if instance.ready_at is not None and instance.is_ours:
            self._ledger.post(became_ready(instance.key, instance.ready_at))

    async def annotate(self, instance: Instance) -> None:
        """Have the keeper remember what is known now.

        A keeper that does not answer in time will do so before anything that it is asked later.
        """
        try:
            await instance.annotate(self.placement)
        except KeeperLostError:
            raise
        # it has ended meanwhile, so nobody will adopt it; or the keeper is silent
        except PxError as error:
            _log.debug("annotate_refused", instance=instance.key, detail=error.detail)

    def _failed(self, instance: Instance, error: PxError) -> PxError:
        instance.error = error
        reason, code = reason_of(error), error.problem().get("code")
        self.say("start_failed", instance, reason, detail=error.detail, hint=error.hint, code=code)
        return error

    # -- adoption ----------------------------------------------------------------------------------

    async def adopt(self, driver: Driver[Any]) -> list[Any]:
        """Take over what an earlier control plane left: same pid, same port, same age.

        Returns the living instances that go on, the newest of a unit first; ready ones, and ones to
        `start`.
        """
        children = await self.placement.list(f"{driver.kind}:")
        held = sorted(children, key=lambda each: each.started_at, reverse=True)
        notes = [read_note(child.tag) for child in held]
        revived = [driver.revive(child, note) for child, note in zip(held, notes, strict=True)]
        going = [
            self._adopt(driver, *each)
            for each in zip(revived, held, notes, strict=True)
            if each[0] is not None
        ]
        goes_on = await asyncio.gather(*going)
        return [instance for instance in goes_on if instance is not None]

    async def _adopt(
        self, driver: Driver[Any], instance: Any, child: Child, note: Note | None
    ) -> Any:
        instance.child = child
        instance.started_at = child.started_at
        instance.wanted = note.stopping if note is not None else None
        instance.asked_at -= max(0.0, time.time() - child.started_at)
        # who started it may have died before its commit
        self._ledger.post(Instance.spawned(instance, child))
        if was_ready := note is not None and note.ready:
            instance.ready_at, instance.phase = child.started_at, Phase.READY
        if child.exit is not None:
            instance.record = child.exit
            await self.stop(driver, instance, None)
            return None
        goes_on = False
        if note is not None and note.stopping is None:
            goes_on = await self.placement.until_known(lambda: driver.adopt(instance, note))
        if goes_on:
            self.say("adopted", instance, where=True)
            if instance.phase is Phase.READY and not was_ready:  # it has come up since
                await self.became_ready(instance)
            return instance
        reason = instance.wanted or Reason.REPLACED
        instance.kept_tag = stopping_tag(child.tag, note, reason)
        self.task(self.stop(driver, instance, reason))
        return None

    # -- down --------------------------------------------------------------------------------------

    async def wait(self, instance: Instance) -> ExitRecord:
        """Wait until the leader of an instance was reaped (not: until its tree is gone)."""
        instance.record = await self.placement.wait(instance.key)
        return instance.record

    async def stop(
        self, driver: Driver[Kind_contra], instance: Kind_contra, reason: Reason | None
    ) -> None:
        """Stop what is there of an instance, record its end, and let the driver forget it.

        `reason`: why; None when it ended, or failed to start, by itself. Returns when nothing is
        left of it: while the keeper does not answer that is unknown, and this goes on. Callers that
        must answer use `unless_silent` on `instance.stopped`.
        """
        try:
            await self._announce(driver, instance, reason)
            await self._terminate(instance)
            await self._collect(driver, instance)
            await self._record(driver, instance)
        except KeeperLostError as error:
            await self._cut_off(driver, instance, error)
        except Exception as error:
            _log.exception("stop_broke", unit=instance.unit, instance=instance.key)
            await self._cut_off(
                driver, instance, PxError(f"pxd failed: {error!r}", reason=Reason.INTERRUPTED.value)
            )
        if instance.words.get("stopped") != "":
            # whoever hears that it is gone may kill us: the event and its reason are kept
            await self._ledger.flush()
        instance.stopped.set()

    async def _announce(
        self, driver: Driver[Kind_contra], instance: Kind_contra, reason: Reason | None
    ) -> None:
        """Enter the stopping phase, and have everybody know why: waiters, followers of events,
        the keeper's note.
        """
        was_starting = instance.phase is Phase.STARTING
        instance.wanted = instance.wanted or reason
        instance.phase = Phase.STOPPING
        if was_starting and instance.life is not None and instance.error is None:
            instance.life.cancel()
        if instance.wanted is not None and instance.record is None:
            self.say("stopping", instance, instance.wanted)
            driver.fail_waiters(instance)
            # A control plane that comes after us finishes this stop, with the same reason.
            await self.annotate(instance)
            return
        has_ended = instance.record is not None or not instance.is_ours
        if instance.error is None and has_ended:
            instance.decide_end(await self.last_words(instance) if instance.logged else "")
            driver.fail_waiters(instance)

    async def _terminate(self, instance: Instance) -> None:
        """Stop the tree, again and again while something survives or the keeper does not say
        what became of it.
        """
        while True:
            report = await self.placement.until_known(lambda: instance.shut_down(self.placement))
            instance.report = report
            if report.unassigned:
                pids = [each.pid for each in report.unassigned]
                self.say("unassigned", instance, instance.wanted or Reason.EXIT, pids=pids)
                _log.warning("unassigned_orphans", unit=instance.unit, pids=pids)
            if not report.survivors:
                return
            pids = [each.pid for each in report.survivors]
            self.say("survivors", instance, instance.wanted or Reason.EXIT, pids=pids)
            _log.error("survived_stop", unit=instance.unit, pids=pids)
            instance.stopped.set()
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _collect(self, driver: Driver[Kind_contra], instance: Kind_contra) -> None:
        """Get the exit record, where there was a process, and decide how the instance ended."""
        if instance.record is None and instance.is_ours:
            # A spawn that was given up may have succeeded: only the keeper can tell.
            held = await self.placement.attach(instance.key)
            if held is not None:
                instance.record = await self.placement.wait(instance.key)
        if instance.end is None:
            instance.decide_end("")
            driver.fail_waiters(instance)

    async def _record(self, driver: Driver[Kind_contra], instance: Kind_contra) -> None:
        """Write the end down, give back what the instance held, and publish the end."""
        if instance.is_ours:
            await self._ledger.write(await instance.ended())
        await driver.release(instance)
        if instance.is_ours:
            self.placement.release(instance.key)
        end = instance.decide_end("")
        event = "died" if instance.died else "stopped"
        self.say(event, instance, end.reason, pid=instance.pid, code=end.code, signal=end.signal)
        instance.phase = Phase.COLD
        driver.gone(instance)  # no await since the event: who hears it reads the state after this

    async def _cut_off(
        self, driver: Driver[Kind_contra], instance: Kind_contra, error: PxError
    ) -> None:
        """The keeper is gone, or we are broken: nothing can be known or done any more; whoever
        waits hears of it.
        """
        instance.error, instance.phase = instance.error or error, Phase.COLD
        instance.decide_end("")
        driver.fail_waiters(instance)
        with contextlib.suppress(KeeperLostError):  # what it held with the keeper is gone, too
            await driver.release(instance)
        driver.gone(instance)

    # -- output ------------------------------------------------------------------------------------

    async def tail(self, instance: Instance, since: float | None = None) -> str:
        """Return the end of what an instance has written to stderr so far, decoded.

        `instance`: also one that has ended; `since`: Unix seconds: only what was written then or
        later.
        """
        if instance.child is None or not instance.logged:
            return ""
        end = instance.record.log_end if instance.record else None
        if end is None and not self.placement.is_silent:
            # what was written before it answers, the keeper has put into the log
            with contextlib.suppress(PxError):
                await self.placement.stat([])
        raw = await asyncio.to_thread(
            self._read_tail, instance.unit, instance.child.log_position, end, since
        )
        return decode_tail(raw, TAIL_BYTES)

    async def tail_between(self, unit: str, since: float, until: float) -> str:
        """Return the end of what a unit has written to stderr between two times (Unix seconds),
        decoded.
        """
        return decode_tail(
            await asyncio.to_thread(self._read_tail, unit, 0, None, since, until), TAIL_BYTES
        )

    def _read_tail(
        self,
        unit: str,
        start: int,
        end: int | None,
        since: float | None,
        until: float | None = None,
    ) -> bytes:
        try:
            reader = LogReader.of(self.placement.log_dir, unit)
            start = start if since is None else max(start, reader.since(since))
            end = end if until is None else reader.since(until)
            return reader.tail_bytes(start, end, Stream.STDERR, TAIL_BYTES)
        except OSError:
            return b""  # a full or broken disk must not hide the failure itself

    async def last_words(self, instance: Instance) -> str:
        """Return the tail of an instance whose leader has ended, after its pipes are drained if
        that is quick.
        """
        if instance.child is None:
            return ""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.placement.stop(
                    instance.key, grace_seconds=instance.stop_seconds, reason="exit"
                )
        except TimeoutError:
            pass  # leftovers of its tree take their time; the stop goes on at the keeper
        return await self.tail(instance, instance.words_since)


def decode_tail(raw: bytes, limit: int) -> str:
    """Decode the last `limit` bytes; what is no UTF-8 is shown as U+FFFD, a first character that
    was cut is dropped.
    """
    tail = raw[-limit:] if limit else b""
    return (tail.lstrip(bytes(range(0x80, 0xC0))) if len(raw) > limit else tail).decode(
        errors="replace"
    )


async def _guarded(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except KeeperLostError:
        _log.warning("keeper_lost")
    except Exception:
        _log.exception("task_failed")


# -- what this machine says of processes, and has left for one -------------------------------------


def is_dead(identity: Identity) -> bool:
    """Say whether exactly this process of the present boot is gone, whatever has its pid now; a
    zombie is.
    """
    row = procfs.look(identity.pid)
    return row is None or not row.alive or row.start_time != identity.start_time


def shortage(unit: str, left: int | None = None) -> StartFailedError:
    """Return the error of a start for which there are too few descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = "no" if not left else f"only {left}"
    said = (
        f"{unit} was not started: pxd has {count} file descriptors left of {limit}, and a start "
        f"needs {RESERVE}."
    )
    hint = (
        "Stop what is not needed, or raise the limit on open files (`ulimit -n`, LimitNOFILE=); "
        "see pxctl doctor."
    )
    facts = {"reason": Reason.SPAWN_FAILED.value, "stage": "fds", "errno": errno.EMFILE}
    return StartFailedError(said, hint=hint, unit=unit, **facts)


def no_descriptors(purpose: str, unit: str | None = None) -> OverloadedError:
    """Return the error of a request for which no descriptor is left; `purpose` follows "to"."""
    detail = f"pxd has no file descriptors left to {purpose}."
    hint = (
        "Ask again later, or raise the limit on open files (`ulimit -n`, LimitNOFILE=); "
        "see pxctl doctor."
    )
    return OverloadedError(detail, hint=hint, unit=unit, retry_after_seconds=1)


def start_error(unit: str, error: OSError) -> StartFailedError:
    """Return the error of a start for which the system refused something."""
    if error.errno in SHORT:
        return shortage(unit)
    facts: dict[str, Any] = {"reason": Reason.SPAWN_FAILED.value, "errno": error.errno}
    return StartFailedError(
        f"{unit} was not started: {error}.", hint="See `pxctl doctor`.", unit=unit, **facts
    )


def check_room(unit: str) -> None:
    """Refuse a start for which too few descriptors are left, while that can be told.

    Raises StartFailedError.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        left = limit - len(os.listdir("/dev/fd"))
    except OSError as error:
        left = 0 if error.errno in SHORT else RESERVE
    if left < RESERVE:
        raise shortage(unit, left)
