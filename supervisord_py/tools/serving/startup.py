"""Bringing one instance up: socket, environment, row, process, readiness; or the reason why not.

The three ways to listen (CONTRACT §5):

- *handover*: descriptor 3 is the tool's listening socket, and the shim puts it in the place of the tool's own bind;
- *fd*: descriptor 3 is the same socket, announced as LISTEN_FDS=1 (sd_listen_fds(3));
- *port*: the tool binds by itself. Its listener is verified once, and another port is tried once when the first turns
  out to be somebody else's.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError, StartFailedError
from supervisord_py.process.descriptors import SHORT, check_room, shortage
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.output import OutputReader, Stream
from supervisord_py.process.spec import ChildSpec, GrantedFd, Reason, ResourceLimit
from supervisord_py.tools.environment import argv_for, build_environment, find_interpreter
from supervisord_py.tools.manifest import ListenMode
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving.failure import decode_tail
from supervisord_py.tools.serving.notify import NotifySocket
from supervisord_py.tools.serving.notify import stored_name as notify_name
from supervisord_py.tools.serving.readiness import (
    ExitedEarly,
    NotInTime,
    ReadinessWatch,
    Ready,
    ReadyOutcome,
    Stolen,
    Watched,
    free_port,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.process.placement import Placement
    from supervisord_py.tools.config import ToolsConfig
    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.serving.chronicle import Chronicle
    from supervisord_py.tools.serving.instance import Instance
    from supervisord_py.tools.serving.listeners import Listeners
    from supervisord_py.tools.serving.readiness import RunTask


SHIM = Path(__file__).with_name("shim.py")
HANDED_FD = 3
PORT_ATTEMPTS = 2
_IN_USE = re.compile(r"(?i)address already in use|EADDRINUSE")
_CPU_SLACK_SECONDS = 2


@dataclass(slots=True)
class Surroundings:
    """What starts need from around them.

    `config` is replaced at a reload, nothing else is. `environ` is the daemon's environment, to pick from; `run_task`
    runs something in the launcher's task group.
    """

    placement: Placement
    listeners: Listeners
    chronicle: Chronicle
    config: ToolsConfig
    tails: StderrTails
    environ: Mapping[str, str]
    run_task: RunTask


def resource_limits(spec: ToolSpec) -> tuple[ResourceLimit, ...]:
    """Return the rlimits of a tool; a core dump is never written."""
    limits = [ResourceLimit("core", 0, 0)]
    asked = (
        ("nofile", spec.limits.open_files, 0),
        ("nproc", spec.limits.processes, 0),
        ("cpu", spec.limits.cpu_seconds, _CPU_SLACK_SECONDS),  # SIGXCPU first, SIGKILL to who ignores it: getrlimit(2)
        ("as", spec.max_address_space_bytes, 0),
    )
    limits += [ResourceLimit(name, value, value + slack) for name, value, slack in asked if value is not None]
    return tuple(limits)


def child_spec(around: Surroundings, instance: Instance, notify_path: Path | None) -> ChildSpec:
    """Return the declaration of the child; looks at files.

    Raises:
        StartFailedError: interpreter or entrypoint is missing, or a required secret.
    """
    spec, config = instance.spec, around.config
    interpreter = None if spec.command is not None else find_interpreter(spec, config.defaults.python)
    argv = argv_for(spec, instance.port, interpreter)
    extra = {**instance.extra_env, **({"NOTIFY_SOCKET": str(notify_path)} if notify_path else {})}
    grants: tuple[GrantedFd, ...] = ()
    if spec.listen is not ListenMode.PORT:
        grants = (GrantedFd(HANDED_FD, around.listeners.stored_name(spec.name)),)
    if spec.listen is ListenMode.FD:
        extra |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
    if spec.listen is ListenMode.HANDOVER and interpreter is not None:
        shim = (str(SHIM), "--px-fd", str(HANDED_FD), "--px-port", str(instance.port), "--")
        argv = (argv[0], *shim, *argv[1:])
    built = build_environment(
        spec, around.environ, allow=config.defaults.env_allow, artefacts_root=config.data_dir, extra=extra
    )
    return ChildSpec(
        unit=spec.unit,
        argv=argv,
        cwd=str(spec.folder),
        env=dict(built.env),
        limits=resource_limits(spec),
        grants=grants,
        listen_pid=spec.listen is ListenMode.FD,
        max_rss_bytes=spec.max_rss_bytes,
        tag=instance.tag().encode() if instance.serial else "",
    )


class Startup:
    """Brings instances up. A failure is raised as the error that every waiter of the start is to see."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def bring_up(self, instance: Instance) -> None:
        """Start the instance and return when it is ready.

        Raises:
            StartFailedError, ReadinessTimeoutError, ResourceLimitError: why it did not come up, with evidence.
            KeeperLostError: the keeper is gone.
        """
        check_room(instance.spec.unit)
        try:
            if instance.spec.listen is not ListenMode.PORT:
                instance.port = (await self._around.listeners.get(instance.spec.name)).port
                outcome_ = await self._attempt(instance)
            else:
                outcome_ = await self._with_ports(instance)
        except OSError as error:
            raise _refused_by_the_system(instance.spec, error) from error
        await self._conclude(instance, outcome_)

    async def resume(self, instance: Instance) -> None:
        """Go on watching an adopted instance that was not ready yet; raises as `bring_up`."""
        elapsed = time.time() - instance.started_at
        left = max(0.0, instance.spec.start_timeout_seconds - elapsed)
        await self._conclude(instance, await self.watch_over(self.watch(instance), instance, left))

    async def _conclude(self, instance: Instance, seen: ReadyOutcome) -> None:
        if not isinstance(seen, Ready):
            raise await self._explain(instance, seen)
        instance.ready_at = time.time()

    async def _with_ports(self, instance: Instance) -> ReadyOutcome:
        for left in reversed(range(PORT_ATTEMPTS)):
            instance.port = _free_port(instance.spec)
            outcome_ = await self._attempt(instance)
            if not left or not await self._deserves_another(instance, outcome_):
                break
            await self._sweep(instance)
            instance.key = self._around.placement.new_key()
        return outcome_

    async def _deserves_another(self, instance: Instance, outcome_: ReadyOutcome) -> bool:
        if isinstance(outcome_, ExitedEarly):
            instance.record = outcome_.record
            return bool(_IN_USE.search(await self._around.tails.last_words(instance)))
        return isinstance(outcome_, Stolen)

    async def _sweep(self, instance: Instance) -> None:
        """End an attempt on a port that was not ours, before the next one."""
        around, key = self._around, instance.key
        await around.placement.stop(key, grace_seconds=instance.spec.stop_timeout_seconds, reason="replaced")
        if instance.child is not None:
            instance.record = await around.placement.wait(key)
        ended = failure.Ended(Reason.REPLACED, instance.record, "")
        await around.chronicle.ended(key, ended)
        await close_notify(around.placement, instance)
        await around.placement.release(key)
        instance.child = instance.record = None

    async def _attempt(self, instance: Instance) -> ReadyOutcome:
        around = self._around
        await self._open_notify(instance)
        path = instance.notify.path if instance.notify else None
        declared = await asyncio.to_thread(child_spec, around, instance, path)
        await around.chronicle.starting(instance)
        instance.child = await around.placement.spawn(instance.key, declared)
        instance.started_at = instance.child.started_at
        watch = self.watch(instance)
        around.chronicle.say("spawned", instance, pid=instance.pid, port=instance.port)
        await around.chronicle.spawned(instance)
        return await self.watch_over(watch, instance, instance.spec.start_timeout_seconds)

    def watch(self, instance: Instance) -> ReadinessWatch:
        """Return a watch over a spawned instance that has begun to listen for its notifications."""
        if instance.pid is None or instance.notify is None:
            raise StartFailedError(f"{instance.spec.unit} has no process to watch.", unit=instance.spec.unit)
        leader = Watched(instance.key, instance.pid, instance.port, instance.notify)
        watch = ReadinessWatch(self._around.placement, leader, self._around.run_task)
        instance.notify.listen(watch.extend)
        return watch

    @staticmethod
    async def watch_over(watch: ReadinessWatch, instance: Instance, seconds: float) -> ReadyOutcome:
        """Watch in the way that the instance's listen mode asks for."""
        return await watch.watch(seconds, owns_port=instance.spec.listen is ListenMode.PORT)

    async def _open_notify(self, instance: Instance) -> None:
        try:
            instance.notify = NotifySocket.create(self._around.config.run_dir, instance.key)
        except OSError as error:
            raise StartFailedError(
                f"No notification socket could be made for {instance.spec.unit}: {error}.",
                hint="See `pxctl doctor`.",
                unit=instance.spec.unit,
                reason=Reason.SPAWN_FAILED.value,
                stage="notify",
                errno=error.errno,
            ) from error
        await self._around.placement.put_fd(notify_name(instance.key), instance.notify.fileno())

    async def _explain(self, instance: Instance, seen: ReadyOutcome) -> PxError:
        spec, tails = instance.spec, self._around.tails
        match seen:
            case ExitedEarly(record):
                instance.record = record
                words = await tails.last_words(instance)
                reason = outcome(record, instance.wanted, False, spec.limits.cpu_seconds)
                return failure.early_exit(spec, failure.Ended(reason, record, words))
            case NotInTime():
                instance.wanted = instance.wanted or Reason.READINESS_TIMEOUT
                return failure.not_ready(spec, seen, instance.port, await tails.of(instance))
            case Stolen(port):
                return failure.port_stolen(spec, port, PORT_ATTEMPTS)
            case _:
                raise AssertionError(seen)


def _refused_by_the_system(spec: ToolSpec, error: OSError) -> StartFailedError:
    if error.errno in SHORT:
        return shortage(spec.unit)
    return StartFailedError(
        f"{spec.unit} was not started: {error}.",
        hint="See `pxctl doctor`.",
        unit=spec.unit,
        reason=Reason.SPAWN_FAILED.value,
        errno=error.errno,
    )


def _free_port(spec: ToolSpec) -> int:
    try:
        return free_port()
    except OSError as error:
        raise StartFailedError(
            f"No port could be found for {spec.unit}: {error.strerror}.",
            hint="Raise the limit on open files (`ulimit -n`) and see `pxctl doctor`.",
            unit=spec.unit,
            reason=Reason.SPAWN_FAILED.value,
            stage="listen",
            errno=error.errno,
        ) from error


async def close_notify(placement: Placement, instance: Instance) -> None:
    """Take an instance's notification socket away."""
    if instance.notify is not None:
        instance.notify.remove()
        instance.notify = None
        await placement.drop_fd(notify_name(instance.key))


DRAIN_SECONDS = 0.5
"""How long a failure waits for the last words of a tree that is slow to end."""


class StderrTails:
    """Reads tails of at most `limit` bytes."""

    def __init__(self, placement: Placement, limit: int) -> None:
        self._placement = placement
        self._limit = limit

    async def of(self, instance: Instance) -> str:
        """Return what an instance has written to stderr so far, the end of it."""
        if instance.child is None:
            return ""
        end = instance.record.log_end if instance.record else None
        raw = await asyncio.to_thread(self._read, instance.spec.unit, instance.child.log_position, end)
        return decode_tail(raw, self._limit)

    def _read(self, unit: str, start: int, end: int | None) -> bytes:
        try:
            reader = OutputReader.of(self._placement.log_dir, unit)
            return reader.tail_bytes(start, reader.end() if end is None else end, Stream.STDERR, self._limit)
        except OSError:
            return b""  # a full or broken disk must not hide the failure itself

    async def last_words(self, instance: Instance) -> str:
        """Return the tail of an instance whose leader has ended, after its pipes are drained if that is quick."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                grace = instance.spec.stop_timeout_seconds
                await self._placement.stop(instance.key, grace_seconds=grace, reason="exit")
        except TimeoutError:
            pass  # leftovers of its tree take their time; the stop goes on at the keeper
        return await self.of(instance)
