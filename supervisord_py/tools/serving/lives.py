"""The lives of instances: up, watched, and down to the last process; what happened is recorded before it is forgotten.

Law: *stopped* means that the whole tree is gone, not that the leader was reaped (DESIGN law 2). An instance whose tree
cannot be ended stays in the stopping phase, so that no second copy is started beside it, and its stop is tried again.
Whoever hears of an end finds the final state: the end is in the ledger before the keeper forgets it, and published in
one breath with the leaving of the pool, before the next instance of the tool begins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import ConflictError, KeeperLostError, PxError, StartFailedError
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.spec import Reason
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving import warm_events as ev
from supervisord_py.tools.serving.startup import Startup, Surroundings, close_notify
from supervisord_py.tools.serving.upstream import Upstream, schema_drift

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from supervisord_py.process.spec import ExitRecord
    from supervisord_py.tools.serving.instance import Instance
    from supervisord_py.tools.serving.launcher import Launcher

TRY_AGAIN_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class Lives:
    """Performs what the warm set decides about instances."""

    def __init__(self, around: Surroundings, pool: Launcher) -> None:
        self._around = around
        self._pool = pool
        self._startup = Startup(around)

    # -- up --------------------------------------------------------------------------------------------------

    async def live(self, instance: Instance) -> None:
        """Bring an instance up and watch it to its end."""
        await self._until_ready(instance, self._startup.bring_up(instance))

    async def resume(self, instance: Instance) -> None:
        """Go on with an adopted instance that was still starting."""
        await self._until_ready(instance, self._startup.resume(instance))

    async def _until_ready(self, instance: Instance, coming_up: Coroutine[None, None, None]) -> None:
        try:
            await coming_up
        except PxError as error:
            self._start_failed(instance, error)
            return
        except Exception as error:
            _log.exception("start_broke", unit=instance.spec.unit)
            self._start_failed(instance, StartFailedError(f"pxd failed: {error!r}", unit=instance.spec.unit))
            return
        elapsed = asyncio.get_running_loop().time() - instance.asked_at
        instance.cold_start_ms = max(1, round(elapsed * 1000))
        self.became_ready(instance)
        await self._record_ready(instance)
        await self.watch(instance)

    def became_ready(self, instance: Instance) -> None:
        """Take an instance into use."""
        name = instance.spec.name
        instance.upstream = Upstream(instance.port)
        chronicle = self._around.chronicle
        chronicle.say("ready", instance, pid=instance.pid, port=instance.port, cold_start_ms=instance.cold_start_ms)
        chronicle.update(name, state="ready", reason=None, failure=None)
        self._pool.report(ev.BecameReady(name, instance.serial))
        if chronicle.standing(name).drift_digest != instance.digest:
            self._pool.run_task(self._compare_schema(instance))

    async def _record_ready(self, instance: Instance) -> None:
        await self._around.chronicle.ready(instance)
        if instance.wanted is None:
            await self._annotate(instance)

    async def _annotate(self, instance: Instance) -> None:
        try:
            await self._around.placement.annotate(instance.key, instance.tag().encode())
        except KeeperLostError:
            raise
        except PxError as error:  # it has ended meanwhile: nobody will adopt it
            _log.debug("annotate_refused", instance=instance.key, detail=error.detail)

    def _start_failed(self, instance: Instance, error: PxError) -> None:
        chronicle, name = self._around.chronicle, instance.spec.name
        instance.failure = error
        problem = error.problem()
        reason = _reason_of(error)
        chronicle.say("start_failed", instance, reason, detail=error.detail, hint=error.hint, code=problem.get("code"))
        chronicle.update(name, state="failed", reason=reason.value, failure=problem)
        _log.warning("tool_start_failed", unit=instance.spec.unit, reason=reason.value, detail=error.detail)
        self._pool.report(ev.StartFailed(name, instance.serial))

    async def _compare_schema(self, instance: Instance) -> None:
        if instance.upstream is None:
            return
        found = await schema_drift(instance.upstream, dict(instance.spec.manifest))
        if instance.wanted is not None or instance.over.is_set():
            return  # it was going away while it was asked
        chronicle = self._around.chronicle
        chronicle.update(instance.spec.name, drift=found, drift_digest=instance.digest)
        if found:
            chronicle.say_of_tool("schema_drift", instance.spec.name, Reason.SCHEMA_DRIFT, places=list(found))
            _log.warning("schema_drift", unit=instance.spec.unit, places=found)

    async def watch(self, instance: Instance) -> None:
        """Wait for the end of a ready instance; if nobody wanted it, say so and clear up."""
        try:
            instance.record = await self._around.placement.wait(instance.key)
        except KeeperLostError:
            self._pool.report(ev.Died(instance.spec.name, instance.serial))
            raise
        if instance.wanted is not None or instance.over.is_set():
            return
        chronicle, name = self._around.chronicle, instance.spec.name
        chronicle.update(name, restarts=chronicle.standing(name).restarts + 1)
        self._pool.report(ev.Died(name, instance.serial))

    # -- down ------------------------------------------------------------------------------------------------

    async def end(self, instance: Instance, reason: Reason | None) -> None:
        """Stop what is there of an instance, record its end, and report it gone. `reason` is None for its own end."""
        try:
            await self._end(instance, reason)
        except KeeperLostError as error:
            await self._cut_off(instance, error)
        instance.stopped.set()

    async def _end(self, instance: Instance, reason: Reason | None) -> None:
        if reason is not None:
            instance.wanted = instance.wanted or reason
        if instance.life is not None and instance.ready_at is None and instance.failure is None:
            instance.life.cancel()
        if instance.wanted is not None:
            self._announce(instance, instance.wanted)
            await self._annotate(instance)
        elif instance.failure is None:
            await self._gather(instance, await self._around.tails.last_words(instance))
        await self._clear(instance)
        await self._put_away(instance)
        if instance.failure is not None:
            self._around.listeners.refuse_waiting(instance.spec.name)
        if instance.ended is not None:
            self._say_ended(instance, instance.ended)
        self._pool.gone(instance)  # no await since the event: who hears it reads the state after this

    def _announce(self, instance: Instance, reason: Reason) -> None:
        self._around.chronicle.say("stopping", instance, reason)
        for visit in tuple(instance.visits):
            visit.interrupt(failure.stopped_during_run(instance.spec, reason))

    async def _gather(self, instance: Instance, stderr_tail: str) -> None:
        """Decide how the instance ended, and let the runs on it know."""
        record = instance.record
        if record is None:
            reason = instance.wanted or Reason.INTERRUPTED
        else:
            limit = instance.spec.limits.cpu_seconds
            reason = outcome(record, instance.wanted, instance.ready_at is not None, limit)
        instance.ended = failure.Ended(reason, record, stderr_tail)
        instance.over.set()
        for visit in tuple(instance.visits):
            visit.interrupt(failure.died_during_run(instance.spec, instance.ended))

    async def _clear(self, instance: Instance) -> None:
        """Stop the tree, again and again while something survives."""
        around, spec = self._around, instance.spec
        reason = instance.wanted or Reason.EXIT
        while True:
            instance.report = await around.placement.stop(
                instance.key, grace_seconds=spec.stop_timeout_seconds, reason=reason.value
            )
            if not instance.report.survivors:
                return
            pids = [survivor.pid for survivor in instance.report.survivors]
            around.chronicle.say("survivors", instance, reason, pids=pids)
            _log.error("tool_survived_stop", unit=spec.unit, pids=pids)
            instance.stopped.set()
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _put_away(self, instance: Instance) -> None:
        """Record the end and give back what the instance held."""
        around, name = self._around, instance.spec.name
        if instance.record is None:
            instance.record = await self._record_of(instance)
        if instance.failure is not None:
            words = str(instance.failure.extra.get("stderr_tail", ""))
            instance.ended = failure.Ended(_reason_of(instance.failure), instance.record, words)
            instance.over.set()
        elif instance.ended is None:
            await self._gather(instance, "")
        if instance.ended is not None:
            await around.chronicle.ended(instance.key, instance.ended)
            if instance.failure is None:
                around.chronicle.update(name, state="cold", reason=instance.ended.reason.value)
        await close_notify(around.placement, instance)
        if instance.upstream is not None:
            await instance.upstream.close()
        around.listeners.listen_again(name)
        try:
            await around.placement.release(instance.key)
        except ConflictError as error:
            _log.warning("release_refused", instance=instance.key, detail=error.detail)

    async def _record_of(self, instance: Instance) -> ExitRecord | None:
        child = await self._around.placement.attach(instance.key)
        return await self._around.placement.wait(instance.key) if child is not None else None

    def _say_ended(self, instance: Instance, ended: failure.Ended) -> None:
        chronicle = self._around.chronicle
        died = instance.wanted is None and instance.failure is None
        event = "died" if died else "stopped"
        chronicle.say(event, instance, ended.reason, pid=instance.pid, code=ended.code, signal=ended.signal)
        if died:
            how = failure.how_it_ended(ended)
            _log.warning("tool_died", unit=instance.spec.unit, reason=ended.reason.value, how=how)

    async def _cut_off(self, instance: Instance, error: PxError) -> None:
        """The keeper is gone: nothing can be known or done any more; whoever waits hears of it."""
        instance.over.set()
        for visit in tuple(instance.visits):
            visit.interrupt(failure.fresh(error))
        if instance.notify is not None:
            instance.notify.close()
        if instance.upstream is not None:
            await instance.upstream.close()
        self._pool.gone(instance)


def _reason_of(error: PxError) -> Reason:
    try:
        return Reason(str(error.extra.get("reason", "")))
    except ValueError:
        return Reason.INTERRUPTED if isinstance(error, KeeperLostError) else Reason.SPAWN_FAILED
