"""Taking over what an earlier control plane left with the keeper: same pid, same port, same start time, same age.

Law: a child whose note is understood and whose tool still exists is gone on with; one that ended meanwhile is recorded
with its code; everything else of ours is stopped, never left behind and never started a second time beside.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.process import clock
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.spec import Reason
from supervisord_py.tools.manifest import ListenMode
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving import warm_events as ev
from supervisord_py.tools.serving.instance import Instance, decode_tag, rules_of
from supervisord_py.tools.serving.notify import NotifySocket, socket_path
from supervisord_py.tools.serving.notify import stored_name as notify_name
from supervisord_py.tools.serving.upstream import Upstream
from supervisord_py.tools.serving.warm_events import Phase

if TYPE_CHECKING:
    from supervisord_py.process.spec import Child, ExitRecord
    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.serving.instance import Tag
    from supervisord_py.tools.serving.launcher import Launcher
    from supervisord_py.tools.serving.lives import Lives
    from supervisord_py.tools.serving.startup import Surroundings


class Adoption:
    """Done once, when a launcher opens."""

    def __init__(self, around: Surroundings, lives: Lives, adopter: Launcher) -> None:
        self._around = around
        self._lives = lives
        self._adopter = adopter

    async def adopt_all(self) -> None:
        """Go through all tools that the keeper holds, the newest instance of a tool first."""
        children = await self._around.placement.list("tool:")
        for child in sorted(children, key=lambda each: each.started_at, reverse=True):
            tag = decode_tag(child.tag)
            if child.exit is not None:
                await self._bury(child, child.exit, tag)
            else:
                await self._take_over(child, tag)

    async def _take_over(self, child: Child, tag: Tag | None) -> None:
        spec = self._declared(child, tag)
        fits = tag is not None and spec is not None and tag.wanted is None and await self._is_reachable(spec, tag)
        if fits and tag is not None and spec is not None and self._adopter.warm_set.slot(spec.name) is None:
            await self._adopt(child, tag, spec)
        else:
            reason = (tag.wanted if tag else None) or Reason.REPLACED
            self._adopter.run_task(self._stop_left_over(child, tag, reason))

    def _declared(self, child: Child, tag: Tag | None) -> ToolSpec | None:
        try:
            return self._adopter.catalog.get(tag.tool if tag else child.unit.removeprefix("tool:"))
        except PxError:
            return None

    async def _is_reachable(self, spec: ToolSpec, tag: Tag) -> bool:
        """Say whether the socket that the instance listens on is still the tool's."""
        if tag.listen == ListenMode.PORT:
            return True
        return (await self._around.listeners.get(spec.name)).port == tag.port

    async def _adopt(self, child: Child, tag: Tag, spec: ToolSpec) -> None:
        around, adopter = self._around, self._adopter
        instance = Instance(
            serial=adopter.warm_set.reserve_serial(),
            key=child.key,
            spec=spec,
            started_at=child.started_at,
            asked_at=asyncio.get_running_loop().time() - max(0.0, time.time() - child.started_at),
            port=tag.port,
            start_method=tag.start_method,
            cold_start_ms=tag.cold_start_ms,
            child=child,
            digest=tag.digest,
        )
        await self._reopen_notify(instance)
        last_used = around.chronicle.standing(spec.name).last_used or child.started_at
        phase = Phase.READY if tag.ready else Phase.STARTING
        around.chronicle.say("adopted", instance, pid=instance.pid, port=instance.port)
        around.chronicle.update(spec.name, state=phase.value)
        if tag.ready:
            instance.ready_at = child.started_at
            instance.upstream = Upstream(instance.port)
            if instance.notify is not None:
                instance.notify.listen()
            instance.life = adopter.run_task(self._lives.watch(instance))
        else:
            instance.life = adopter.run_task(self._lives.resume(instance))
        age = max(0.0, time.time() - last_used)
        adopted = ev.Adopted(spec.name, instance.serial, rules_of(spec), tag.digest, clock.now() - age, phase)
        adopter.adopt(instance, adopted)

    async def _reopen_notify(self, instance: Instance) -> None:
        fd = await self._around.placement.take_fd(notify_name(instance.key))
        path = socket_path(self._around.config.run_dir, instance.key)
        if fd is not None:
            os.set_inheritable(fd, False)
            instance.notify = NotifySocket(socket.socket(fileno=fd), path)
        elif instance.ready_at is None:
            instance.notify = NotifySocket.create(self._around.config.run_dir, instance.key)

    async def _bury(self, child: Child, record: ExitRecord, tag: Tag | None) -> None:
        """Record an end that happened while no control plane was there."""
        wanted = tag.wanted if tag else None
        ready = (tag is not None and tag.ready) or await self._around.chronicle.was_ready(child.key)
        ended = failure.Ended(outcome(record, wanted, ready), record, "")  # the limit is in its verdict, if any
        await self._record_end(child, ended, "stopped" if wanted else "died", restarts=int(ready and wanted is None))

    async def _stop_left_over(self, child: Child, tag: Tag | None, reason: Reason) -> None:
        around = self._around
        await around.placement.stop(child.key, grace_seconds=around.config.defaults.stop_timeout_seconds, reason=reason)
        record = await around.placement.wait(child.key)
        ended = failure.Ended(outcome(record, reason, tag.ready if tag else False), record, "")
        await self._record_end(child, ended, "stopped")

    async def _record_end(self, child: Child, ended: failure.Ended, event: str, *, restarts: int = 0) -> None:
        """Record how a child ended. Its tool stands as its newest instance does: an older one changes nothing there."""
        chronicle, name = self._around.chronicle, child.unit.removeprefix("tool:")
        await chronicle.ended(child.key, ended)
        newest = await chronicle.newest_key(name)
        chronicle.say_of_tool(
            event,
            name,
            ended.reason,
            instance=child.key,
            pid=child.identity.pid,
            code=ended.code,
            signal=ended.signal,
        )
        standing = {"state": "cold", "reason": ended.reason.value} if newest in {child.key, None} else {}
        chronicle.update(name, restarts=chronicle.standing(name).restarts + restarts, **standing)
        await self._forget(child)

    async def _forget(self, child: Child) -> None:
        placement = self._around.placement
        await placement.stop(child.key, grace_seconds=0.0, reason=Reason.EXIT)
        await placement.drop_fd(notify_name(child.key))
        socket_path(self._around.config.run_dir, child.key).unlink(missing_ok=True)
        await placement.release(child.key)
