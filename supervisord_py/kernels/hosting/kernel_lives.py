"""The lives of kernels: up, watched, and down to the last process; what happened is recorded before it is forgotten.

Law: *stopped* means that the whole tree is gone, not that the leader was reaped (DESIGN law 2). A kernel whose tree
cannot be ended stays in its stopping phase, so that no second one is started beside it, and its stop is tried again.
Whoever hears of an end finds the final state: the end is in the ledger before the keeper forgets it, and published in
one breath with the leaving of the set, before the next kernel of the session begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import ConflictError, KeeperLostError, PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.messages import KernelEnd, decode_tail, how_it_ended
from supervisord_py.process.host import SHORT, check_room, shortage
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.logs import LogReader
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import Started
    from supervisord_py.kernels.hosting.kernel_pool import KernelPool
    from supervisord_py.kernels.lives.kernel_life import KernelLife
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import ExitRecord

TRY_AGAIN_SECONDS = 5.0
EXIT_SECONDS = 2.0
"""How long a kernel may take to end after exit() in a cell."""
CELL_SECONDS = 5.0
"""How long a cell whose kernel has ended may take to say so; it knows as soon as we do."""
TAIL_BYTES = 8192
DRAIN_SECONDS = 0.5
"""How long a death waits for the last words of a tree that is slow to end."""
_log = structlog.get_logger(__name__)


class KernelLives:
    """Performs what the session set decides about kernels."""

    def __init__(self, house: KernelPool) -> None:
        self._house = house
        self.words = LastWords(house.placement)

    # -- up ----------------------------------------------------------------------------------------------------------

    async def live(self, life: KernelLife) -> None:
        """Bring a kernel up and watch it to its end."""
        try:
            await self._bring_up(life)
        except PxError as error:
            self._start_failed(life, error)
            return
        except OSError as error:
            self._start_failed(life, _refused_by_the_system(life, error))
            return
        except Exception as error:
            _log.exception("kernel_start_broke", unit=life.unit)
            self._start_failed(life, StartFailedError(f"pxd failed: {error!r}", unit=life.unit))
            return
        life.cold_start_ms = max(1, round((asyncio.get_running_loop().time() - life.asked_at) * 1000))
        self._became_ready(life)
        if life.is_ours:
            await self._house.chronicle.ready(life)
        if life.wanted is None:
            await self.annotate(life)
        await self.watch(life)

    async def _bring_up(self, life: KernelLife) -> None:
        house = self._house
        check_room(life.unit)
        life.launch = await house.launch_of(life)
        backend = await house.backend(life.session.backend)
        if life.is_ours:
            await house.chronicle.starting(life)

        async def on_spawned(started: Started) -> None:
            await self._spawned(life, started)

        deadline = asyncio.get_running_loop().time() + house.start_seconds
        life.handle = await backend.start(life.launch, deadline=deadline, on_spawned=on_spawned)
        if life.child is None:
            life.child = life.handle.started.child

    async def _spawned(self, life: KernelLife, started: Started) -> None:
        life.child, life.start_method = started.child, started.method
        if started.child is not None:
            life.started_at = started.child.started_at
            self._house.chronicle.say("spawned", life, pid=life.pid, start_method=life.start_method.value)
            await self._house.chronicle.spawned(life)

    def _became_ready(self, life: KernelLife) -> None:
        life.ready_at = time.time()
        self._house.chronicle.say("ready", life, pid=life.pid, cold_start_ms=life.cold_start_ms)
        self._house.life_ready(life)

    def _start_failed(self, life: KernelLife, error: PxError) -> None:
        life.failure = error
        if life.wanted is None:
            reason = reason_of(error)
            self._house.chronicle.say("start_failed", life, reason, detail=error.detail, hint=error.hint)
            _log.warning("kernel_start_failed", unit=life.unit, reason=reason.value, detail=error.detail)
        self._house.life_failed(life, error)

    async def annotate(self, life: KernelLife) -> None:
        """Bring the note of a life up to date, with the keeper or among a gateway's own; one that ended needs none."""
        try:
            tag = self._house.tag_of(life)
            if life.is_ours:
                if life.child is not None:
                    await self._house.placement.annotate(life.key, tag)
            elif life.handle is not None:
                backend: Any = await self._house.backend(life.session.backend)
                await backend.annotate(life.key, tag)
        except KeeperLostError:
            raise
        except PxError as error:
            _log.debug("annotate_refused", instance=life.key, detail=error.detail)

    async def watch(self, life: KernelLife) -> None:
        """Wait for the end of a ready kernel; if nobody wanted it, say so and clear up."""
        if life.handle is None:
            return
        try:
            life.record = await asyncio.shield(life.handle.died) or life.record
        except KeeperLostError:
            self._house.keeper_lost()
            raise
        await self._hear_its_cell(life)
        self._house.life_died(life)

    @staticmethod
    async def _hear_its_cell(life: KernelLife) -> None:
        """Let the cell that ran have its say first: whether the end was its wish, it alone knows."""
        if life.busy:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CELL_SECONDS):
                    await life.judged.wait()

    # -- down --------------------------------------------------------------------------------------------------------

    async def end(self, life: KernelLife, reason: Reason | None) -> None:
        """Stop what is there of a kernel, record its end, and report it gone. `reason` is None for its own end."""
        try:
            await self._end(life, reason)
        except KeeperLostError:
            self._house.keeper_lost()
            await self._cut_off(life)
        except Exception:
            _log.exception("kernel_end_broke", unit=life.unit, instance=life.key)
            await self._cut_off(life)
        await self._house.chronicle.flush()  # the event of its end is kept, whoever is killed from now on
        life.stopped.set()

    async def _cut_off(self, life: KernelLife) -> None:
        """Nothing more can be done or known: let go of it, and tell whoever waits."""
        if life.handle is not None:
            with contextlib.suppress(Exception):
                await life.handle.close()
        life.tell(life.ended or KernelEnd(Reason.INTERRUPTED, life.record))
        self._house.life_gone(life)

    async def _end(self, life: KernelLife, reason: Reason | None) -> None:
        life.ending = True
        if reason is not None:
            life.wanted = life.wanted or reason
        if life.task is not None and life.ready_at is None and life.failure is None:
            life.task.cancel()
            await asyncio.wait([life.task])
        if life.wanted is not None:
            self._house.chronicle.say("stopping", life, life.wanted)
            await self.annotate(life)
        elif life.failure is None:
            await self._let_it_exit(life)
            if life.record is not None or not (life.exiting and life.is_ours):
                tail = await self.words.after_death(life, self._house.stop_seconds)
                life.tell(self._conclude(life, tail))
        await self._clear(life)
        await self._put_away(life)
        self._say_ended(life)
        self._house.life_gone(life)  # no await since the event: who hears it reads the state after this

    @staticmethod
    async def _let_it_exit(life: KernelLife) -> None:
        """Wait a moment for a kernel that ends by its own wish, so that its exit code is its own, too.

        One that takes longer is ended like any other: how it ended is known, and told, when it is cleared away.
        """
        if life.handle is None or life.record is not None:
            return
        if life.exiting:
            await asyncio.wait({life.handle.died}, timeout=EXIT_SECONDS)
        if life.handle.died.done():
            life.record = life.handle.died.result()

    def _conclude(self, life: KernelLife, tail: str) -> KernelEnd:
        if life.failure is not None and life.wanted is None:
            return KernelEnd(reason_of(life.failure), life.record, str(life.failure.extra.get("stderr") or ""))
        if life.record is None:
            unasked = Reason.INTERRUPTED if life.is_ours else Reason.EXIT  # a server says that it went, not how
            return KernelEnd(life.wanted or unasked, None, tail)
        limits = life.launch.limits if life.launch else ()
        cpu = next((float(each.soft) for each in limits if each.name == "cpu"), None)
        reason = outcome(life.record, life.wanted, life.ready_at is not None, cpu)
        if reason is Reason.CANCELLED:
            reason = life.wanted or reason  # a start that is cut short is cancelled there; why, is known here
        return KernelEnd(reason, life.record, tail)

    async def _clear(self, life: KernelLife) -> None:
        """Stop the tree, again and again while something survives."""
        house = self._house
        reason = life.wanted or Reason.EXIT
        while True:
            life.survivors = await self._shut_down(life, reason)
            if not life.survivors:
                return
            house.chronicle.say("survivors", life, reason, pids=list(life.survivors))
            _log.error("kernel_survived_stop", unit=life.unit, pids=life.survivors)
            life.stopped.set()
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _shut_down(self, life: KernelLife, reason: Reason) -> tuple[int, ...]:
        grace = self._house.stop_seconds
        if life.handle is not None:
            return await life.handle.shutdown(grace, reason.value)
        report = await self._house.placement.stop(life.key, grace_seconds=grace, reason=reason.value)
        return tuple(each.pid for each in report.survivors)

    async def _put_away(self, life: KernelLife) -> None:
        """Record the end and give back what the life held."""
        house = self._house
        if life.record is None and life.is_ours:
            life.record = await self._record_of(life)
        if life.ended is None:
            life.tell(self._conclude(life, ""))
        if not life.is_ours:
            return
        if life.ended is not None:
            await house.chronicle.ended(life.key, life.ended)
        try:
            await house.placement.release(life.key)
        except ConflictError as error:
            _log.warning("release_refused", instance=life.key, detail=error.detail)

    async def _record_of(self, life: KernelLife) -> ExitRecord | None:
        child = await self._house.placement.attach(life.key)
        return await self._house.placement.wait(life.key) if child is not None else None

    def _say_ended(self, life: KernelLife) -> None:
        if life.ended is None:
            return
        died = life.wanted is None and life.failure is None and not life.exiting
        event = "died" if died else "stopped"
        facts = {"pid": life.pid, "code": life.ended.code, "signal": life.ended.signal}
        self._house.chronicle.say(event, life, life.ended.reason, **facts)
        if died:
            how = how_it_ended(life.ended)
            _log.warning("kernel_died", unit=life.unit, reason=life.ended.reason.value, how=how)


def reason_of(error: PxError) -> Reason:
    """Return the reason of CONTRACT §7 that a failed start carries."""
    try:
        return Reason(str(error.extra.get("reason", "")))
    except ValueError:
        if isinstance(error, ReadinessTimeoutError):
            return Reason.READINESS_TIMEOUT
        return Reason.INTERRUPTED if isinstance(error, KeeperLostError) else Reason.SPAWN_FAILED


def _refused_by_the_system(life: KernelLife, error: OSError) -> StartFailedError:
    if error.errno in SHORT:
        return shortage(life.unit)
    return StartFailedError(
        f"{life.unit} was not started: {error}.",
        hint="See `pxctl doctor`.",
        unit=life.unit,
        reason=Reason.SPAWN_FAILED.value,
        errno=error.errno,
    )


class LastWords:
    """Reads the ends of kernels' logs."""

    def __init__(self, placement: KeeperClient) -> None:
        self._placement = placement

    async def of(self, life: KernelLife) -> str:
        """Return the end of what a life has printed to its own stdout and stderr so far; '' where it has no log."""
        if life.child is None:
            return ""
        end = life.record.log_end if life.record else None
        raw = await asyncio.to_thread(self._read, life.unit, life.child.log_position, end)
        return decode_tail(raw, TAIL_BYTES)

    async def after_death(self, life: KernelLife, grace_seconds: float) -> str:
        """Return the tail of a life whose leader has ended, after its pipes are drained if that is quick."""
        if life.child is None:
            return ""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._placement.stop(life.key, grace_seconds=grace_seconds, reason="exit")
        except TimeoutError:
            pass  # leftovers of its tree take their time; the stop goes on at the keeper
        return await self.of(life)

    def _read(self, unit: str, start: int, end: int | None) -> bytes:
        try:
            reader = LogReader.of(self._placement.log_dir, unit)
            return reader.tail_bytes(start, reader.end() if end is None else end, None, TAIL_BYTES)
        except OSError:
            return b""  # a full or broken disk must not hide the end itself
