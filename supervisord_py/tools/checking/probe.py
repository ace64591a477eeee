"""One instance of a tool apart from the warm set, for `tools validate`: its own socket, its own port, nobody else's.

Law: it is recorded like every instance (start method `probe`), and a control plane that finds it left behind stops it,
because its note is not one that can be adopted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp

from supervisord_py.errors import PxError, TimedOutError
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.spec import Reason
from supervisord_py.tools.checking.validator import ProbeAnswer, ProbeStop
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving.answers import read_up_to
from supervisord_py.tools.serving.instance import Instance
from supervisord_py.tools.serving.listeners import Listeners
from supervisord_py.tools.serving.startup import Startup, Surroundings, close_notify
from supervisord_py.tools.serving.upstream import Call, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.process.spec import StopReport
    from supervisord_py.tools.serving.launcher import Launcher
    from supervisord_py.tools.spec import ToolSpec

_MAX_ANSWER = 64 * 1024 * 1024
METHOD = "probe"


class InstanceProbe:
    """Implements `validator.Probe`."""

    def __init__(self, around: Surroundings, spec: ToolSpec) -> None:
        self._spec = spec
        self._instance: Instance | None = None
        self._upstream: Upstream | None = None
        self._log = ""
        listeners = Listeners(around.placement, around.config.listen_backlog, prefix=f"listen:{METHOD}:")
        self._around = replace(around, listeners=listeners)

    async def start(self, extra_env: Mapping[str, str], *, timeout_seconds: float) -> float:
        """Start it and wait until it is ready; returns the milliseconds that took.

        Raises:
            PxError: it did not come up, with evidence.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        instance = self._instance = Instance(
            serial=0,
            key=self._around.placement.new_key(),
            spec=replace(self._spec, start_timeout_seconds=timeout_seconds),
            started_at=time.time(),
            asked_at=begun,
            start_method=METHOD,
            extra_env=extra_env,
        )
        try:
            await Startup(self._around).bring_up(instance)
        except PxError as error:
            self._log = str(error.extra.get("stderr_tail", ""))
            raise
        self._upstream = Upstream(instance.port)
        return (loop.time() - begun) * 1000

    async def get(self, path: str, *, timeout_seconds: float) -> ProbeAnswer:
        """GET a path."""
        return await self._whole(Call("GET", path), timeout_seconds)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float) -> ProbeAnswer:
        """POST to a path."""
        return await self._whole(Call("POST", path, body, headers), timeout_seconds)

    async def first_chunk(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float
    ) -> ProbeAnswer:
        """Begin a streamed answer, take its first chunk that is not empty (empty body: the stream ended), hang up."""
        return await self._whole(Call(method, path, body or None, headers), timeout_seconds, limit=0)

    async def _whole(self, call: Call, timeout_seconds: float, limit: int = _MAX_ANSWER) -> ProbeAnswer:
        if self._upstream is None or self._instance is None:
            raise failure.bad_answer(self._spec, "is not running", self._log)
        try:
            async with asyncio.timeout(timeout_seconds):
                async with await self._upstream.send(call) as answer:
                    body, _ = await read_up_to(answer, limit)
                    headers = {name.lower(): value for name, value in answer.headers.items()}
                    return ProbeAnswer(answer.status, headers, body)
        except TimeoutError as error:
            raise TimedOutError(
                f"{self._spec.unit} did not answer {call.method} {call.path} within {timeout_seconds:g} s.",
                unit=self._spec.unit,
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            self._log = await self._around.tails.of(self._instance)
            what = f"broke off its answer to {call.method} {call.path} ({type(error).__name__})"
            raise failure.bad_answer(self._spec, what, self._log) from error

    async def stop(self) -> ProbeStop:
        """TERM, `stop_timeout_seconds`, KILL to the whole tree; harmless when nothing runs."""
        instance, self._instance = self._instance, None
        if self._upstream is not None:
            await self._upstream.close()
            self._upstream = None
        begun = asyncio.get_running_loop().time()
        report = await self._end(instance) if instance is not None else None
        await self._around.listeners.drop(self._spec.name)
        if report is None:
            return ProbeStop(0.0)
        names = tuple(f"{survivor.name} ({survivor.pid})" for survivor in report.survivors)
        return ProbeStop(asyncio.get_running_loop().time() - begun, report.killed, names)

    async def _end(self, instance: Instance) -> StopReport:
        placement, key = self._around.placement, instance.key
        report = await placement.stop(key, grace_seconds=self._spec.stop_timeout_seconds, reason=Reason.STOPPED.value)
        if instance.child is not None:
            instance.record = await placement.wait(key)
            self._log = await self._around.tails.of(instance)
        reason = Reason.SPAWN_FAILED
        if instance.record is not None:
            reason = outcome(instance.record, Reason.STOPPED, instance.ready_at is not None)
        await self._around.chronicle.ended(key, failure.Ended(reason, instance.record, self._log))
        await close_notify(placement, instance)
        if not report.survivors:
            await placement.release(key)
        return report

    def spawn_log(self) -> str:
        """Return the tail of what it printed on stderr, as far as it was read: at a failure, and at the stop."""
        return self._log


def probe_for(launcher: Launcher) -> Callable[[ToolSpec], InstanceProbe]:
    """Return what makes probes beside a launcher."""
    return lambda spec: InstanceProbe(launcher.around, spec)
