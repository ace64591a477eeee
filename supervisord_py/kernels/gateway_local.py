"""The one gateway of this daemon, and kernels in it, each with its own project's interpreter and
environment.

The gateway is an instance of the supervisor's; its note with the keeper has port and token. The
next control plane goes on with one that answers, for other sessions live in it; one that does not
is stopped before another starts. Each kernel is started by a kernelspec of its own, which runs our
launcher, so that the kernel writes the files of its cells by itself: what the gateway's websocket
loses, the disk has.

A gateway that cannot start kernels any more is replaced, although it answers: one that has run out
of descriptors, and one that fails a start and has no other kernel. Kernels in it that are busy are
not ended for that: a start is refused.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import secrets
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import psutil

from supervisord_py.errors import ConflictError, PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.connection_file import write_private
from supervisord_py.kernels.gateway import MARK, RemoteKernels, remaining
from supervisord_py.kernels.gateway_kernel import (
    OUR_LOG,
    GatewayClient,
    GatewayKernel,
    RemoteKernel,
)
from supervisord_py.kernels.kernelspecs import CONNECTION_FILE, command
from supervisord_py.kernels.messages import early_exit, how_it_ended
from supervisord_py.process.instance import End, Instance, Phase, read_note
from supervisord_py.process.model import Child, ChildSpec, Reason
from supervisord_py.process.supervisor import Driver, Supervisor

UNIT = "kernel:gateway"
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 5.0
DESCRIPTORS_RESERVE = 32  # a kernel's start takes about twenty: pipes, its channels, the websocket
YOUNG_SECONDS = 10.0  # a gateway that has just been started is not what a start fails by
_KEPT = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|TMPDIR|TZ|XDG_DATA_HOME|XDG_CONFIG_HOME)\Z|LC_"
)
_GATEWAY_LINE = re.compile(r"\[[DIWEC] [^\]]+\]")
_OPTIONS = {
    "KernelGatewayApp.ip": "127.0.0.1",
    "KernelGatewayApp.port_retries": 0,
    "KernelGatewayApp.api": "kernel_gateway.jupyter_websocket",
    "JupyterWebsocketPersonality.list_kernels": True,
    "ZMQChannelsWebsocketConnection.limit_rate": False,
    "MappingKernelManager.cull_idle_timeout": 3600,
    "MappingKernelManager.root_dir": "/",
    "KernelManager.transport": "ipc",
    "KernelManager.shutdown_wait_time": 2.0,
    "KernelRestarter.restart_limit": 0,
    "KernelRestarter.time_to_dead": 1.0,
}


class GatewayPlan(msgspec.Struct, frozen=True):
    """What a gateway is started with."""

    python: str
    env: dict[str, str]


class GatewayNote(msgspec.Struct, frozen=True):
    """What the keeper's note on a gateway has beside what every note has."""

    port: int = 0
    token: str = ""
    plan: GatewayPlan | None = None  # None in notes of versions that did not keep it


class GatewayInstance(Instance):
    def __init__(self, key: str, config: KernelsConfig, own: GatewayNote) -> None:
        super().__init__(key, UNIT, stop_seconds=config.stop_seconds)
        self.own = own
        self.port = own.port
        self.client = GatewayClient(f"http://127.0.0.1:{own.port}", own.token, "")

    def own_note(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self.own))

    def descriptors(self) -> tuple[int, int] | None:
        """Return how many descriptors it has open, and how many it may have; None where that cannot
        be read.

        Blocking.
        """
        # Linux alone tells the limit of another process
        if self.pid is None or not hasattr(psutil.Process, "rlimit"):
            return None
        with suppress(psutil.Error, OSError):
            process = psutil.Process(self.pid)
            return process.num_fds(), process.rlimit(psutil.RLIMIT_NOFILE)[0]
        return None

    def is_short(self) -> bool:
        """Say whether too few descriptors are left for one more kernel. Blocking."""
        known = self.descriptors()
        return (
            known is not None
            and known[1] != psutil.RLIM_INFINITY
            and known[0] + DESCRIPTORS_RESERVE > known[1]
        )

    async def answers(self) -> bool:
        with suppress(PxError):
            await self.client.preflight(ANSWER_SECONDS)
            return True
        return False


def plan_for(launch: Launch) -> GatewayPlan:
    """Return what a gateway is started with for its first kernel: the daemon's Python where that
    can run one.
    """
    can = importlib.util.find_spec("kernel_gateway") is not None
    python = sys.executable if can else launch.interpreter or sys.executable
    return GatewayPlan(
        python, {name: value for name, value in launch.env.items() if _KEPT.match(name)}
    )


def listens(pid: int, port: int) -> bool:
    """Say whether exactly this process listens on the port of 127.0.0.1: a listener that is not
    gets no token.
    """
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr == ("127.0.0.1", port)
        for each in connections
    )


class GatewayLocal(RemoteKernels, Driver[GatewayInstance]):
    kind = "kernel"
    writes_files = True

    def __init__(self, supervisor: Supervisor, config: Callable[[], KernelsConfig]) -> None:
        super().__init__(supervisor, config, "local")
        self.gateway: GatewayInstance | None = None  # also while it starts or stops
        self.last_reason: Reason | None = None  # why the last one ended
        self._last_plan: GatewayPlan | None = None
        self._one_at_a_time = asyncio.Lock()
        self._home = config().gateway_dir

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> GatewayKernel:
        gateway = await self._gateway_in_time(launch, deadline)
        try:
            return await self._start_in(gateway, launch, deadline)
        except PxError as error:
            if not await self._is_to_blame(gateway, launch, error):
                raise
        gateway = await self._gateway_in_time(launch, deadline)
        return await self._start_in(gateway, launch, deadline)

    async def _gateway_in_time(self, launch: Launch, deadline: float) -> GatewayInstance:
        # goes on for those who come later
        getting = asyncio.ensure_future(self._gateway_for(launch))
        # nobody waits: it is in its log
        getting.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not (await asyncio.wait([getting], timeout=remaining(deadline)))[0]:
            raise self._late(launch.unit)
        gateway = getting.result()
        assert gateway is not None
        return gateway

    async def _is_to_blame(self, gateway: GatewayInstance, launch: Launch, error: PxError) -> bool:
        """Say whether a start failed because of its gateway, which is stopped then.

        That is so where it has run out of descriptors, or gave an error of its own (5xx) and has no
        other kernel.
        """
        if error.extra.get("reason") == Reason.EARLY_EXIT or gateway.phase is not Phase.READY:
            return False
        status = error.extra.get("gateway_status")
        has_failed = isinstance(status, int) and status >= 500
        is_old = gateway.ready_at is not None and time.time() - gateway.ready_at > YOUNG_SECONDS
        is_alone = not self._others(launch)
        is_short = await asyncio.to_thread(gateway.is_short)
        if not is_short and not (has_failed and is_old and is_alone):
            return False
        async with self._one_at_a_time:
            if self.gateway is gateway:
                self._refuse_while_busy(launch)
                await self._replace(gateway, is_short=is_short)
        return True

    def _others(self, launch: Launch) -> list[GatewayKernel]:
        """Return the living kernels in the gateway beside the one that is being started."""
        opened = self._open.items()
        return [
            kernel for name, kernel in opened if name != launch.instance and not kernel.died.done()
        ]

    def _refuse_while_busy(self, launch: Launch) -> None:
        """Raise StartFailedError where the gateway should be replaced, and kernels in it are
        busy.
        """
        busy = [kernel.unit for kernel in self._others(launch) if kernel.is_busy]
        if busy:
            detail = (
                f"The shared gateway cannot start another kernel, and {', '.join(busy)} in it is "
                "busy."
            )
            hint = (
                "Ask again when that is done; or end it and all kernels in it: pxctl restart "
                f"{UNIT}"
            )
            raise StartFailedError(detail, hint=hint, unit=UNIT, reason=Reason.SPAWN_FAILED.value)

    async def _replace(self, gateway: GatewayInstance, *, is_short: bool) -> None:
        """Stop a gateway in whose place another one is to be started, and tell why."""
        why = "it failed to start a kernel"
        if is_short and (known := await asyncio.to_thread(gateway.descriptors)) is not None:
            why = f"it has run out of file descriptors ({known[0]} of {known[1]} are open)"
        self.supervisor.say(
            "recycled", gateway, Reason.REPLACED, detail=f"The shared gateway is replaced: {why}."
        )
        for kernel in self._open.values():
            kernel.is_blameless = True
        await self._stop(gateway, Reason.REPLACED)

    async def _start_in(
        self, gateway: GatewayInstance, launch: Launch, deadline: float
    ) -> GatewayKernel:
        began = time.time()
        # of kernelspec, kernel and its sockets
        name = "-".join(("px", *re.findall("....", secrets.token_hex(8))))
        folder = self._home / "kernelspecs" / "kernels" / name
        # `env` keeps the gateway's own variables out of the kernel: it gets PATH, and what the
        # kernelspec says.
        body = {"name": name, "path": launch.cwd, "env": {}}
        try:
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(
                write_private, folder / "kernel.json", kernelspec(launch).encode()
            )
            kernel = await self.start_at(
                gateway.client, launch, body, deadline=deadline, wanted=name
            )
            kernel.notice = (
                "No limits of memory or processes hold for kernels of the shared gateway."
            )
            return kernel
        except StartFailedError as error:
            if error.extra.get("reason") != Reason.EARLY_EXIT:
                raise
            log = await self.supervisor.tail(gateway, began)
            said = "".join(
                line for line in log.splitlines(keepends=True) if not _GATEWAY_LINE.match(line)
            )
            raise early_exit(launch, End(Reason.EARLY_EXIT, None, said)) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def client_of(self, held: RemoteKernel) -> GatewayClient | None:
        """Return who speaks with the gateway, if it is the kernel's; otherwise the kernel ended
        with its gateway.
        """
        gateway = await self._gateway_for(None)
        if gateway is not None and gateway.client.shown == held.url:
            return gateway.client
        await self.forget(held)
        return None

    async def close(self, *, stop: bool) -> None:
        await super().close(stop=stop)
        if self.gateway is not None and stop:
            await self._stop(self.gateway)
        elif self.gateway is not None:
            await self.gateway.client.close()

    # -- the gateway -------------------------------------------------------------------------------

    async def _gateway_for(self, launch: Launch | None) -> GatewayInstance | None:
        async with self._one_at_a_time:
            if self.gateway is None:
                await self._find()
            elif launch is not None and not (
                self.gateway.phase is Phase.READY and await self.gateway.answers()
            ):
                await self._stop(self.gateway)
            elif launch is not None and await asyncio.to_thread(self.gateway.is_short):
                self._refuse_while_busy(launch)
                await self._replace(self.gateway, is_short=True)
            if launch is not None and self._last_plan is None:
                # A gateway that was taken over may not say how it was started.
                self._last_plan = await asyncio.to_thread(plan_for, launch)
            if self.gateway is None and launch is not None:
                await self._start(await asyncio.to_thread(plan_for, launch))
            return self.gateway

    async def find(self) -> None:
        """Go on with the gateway of an earlier control plane, if there is one and it answers."""
        await self._gateway_for(None)

    async def end(self, reason: Reason) -> tuple[int, ...]:
        """Stop the gateway, and with it all kernels in it; return the pids that survived."""
        gateway = self.gateway
        if gateway is None:
            return ()
        await self._stop(gateway, reason)
        return tuple(each.pid for each in gateway.report.survivors)

    async def restart(self) -> None:
        """Replace the gateway by one that is started in the same way.

        Raises ConflictError: there is none; PxError.
        """
        async with self._one_at_a_time:
            if self.gateway is None:
                await self._find()
            plan = self._last_plan
            if self.gateway is not None:
                plan = self.gateway.own.plan or plan
                await self._stop(self.gateway, Reason.REPLACED)
            if plan is None:
                detail = (
                    "The shared gateway has never been started: it starts with its first kernel."
                )
                raise ConflictError(detail, hint="pxctl exec --backend gateway-local 1", unit=UNIT)
            await self._start(plan)

    async def _find(self) -> None:
        for child in await self.supervisor.placement.list(UNIT):
            if child.unit != UNIT:  # a session may be called so
                continue
            note = read_note(child.tag)
            own = GatewayNote()
            with suppress(msgspec.ValidationError):
                own = msgspec.convert(note.own if note is not None else {}, GatewayNote)
            self._last_plan = own.plan or self._last_plan
            instance = GatewayInstance(child.key, self.config(), own)
            instance.child, instance.record, instance.phase = child, child.exit, Phase.READY
            instance.started_at = instance.ready_at = child.started_at
            if child.exit is None and await instance.answers():
                self._watch(instance)
            else:
                await self._stop(instance)

    async def _start(self, plan: GatewayPlan) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key, token = self.supervisor.placement.new_key(), secrets.token_urlsafe(32)
        instance = GatewayInstance(key, self.config(), GatewayNote(port, token, plan))
        self.gateway = instance
        self._last_plan = plan
        try:
            await self.supervisor.start(self, instance)
        except BaseException:
            await asyncio.shield(self._stop(instance))
            raise
        await self.supervisor.became_ready(instance)
        self._watch(instance)

    def _watch(self, instance: GatewayInstance) -> None:
        async def watch() -> None:
            await self.supervisor.wait(instance)
            if instance.phase is Phase.READY:
                await self.supervisor.stop(self, instance, None)

        self.gateway = instance
        self.supervisor.task(watch())

    async def _stop(self, instance: GatewayInstance, reason: Reason = Reason.STOPPED) -> None:
        if instance.phase in (Phase.STARTING, Phase.READY):
            is_over = instance.error is not None or instance.record is not None
            await self.supervisor.stop(self, instance, None if is_over else reason)
        await instance.stopped.wait()

    async def prepare(self, instance: GatewayInstance) -> ChildSpec:
        """Return what is to be spawned; its sockets get a private folder.

        Output is not rationed, and a kernel that dies is not restarted, which would hide that its
        variables are gone. It has no max_kernels: with one the gateway lists its kernels before
        each start, and that fails (500) while another one is just being started. What nobody uses
        is culled.
        """
        plan = instance.own.plan
        assert plan is not None
        runtime = self.config().run_dir / "gw"

        def make_places() -> None:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(runtime, ignore_errors=True)  # of a gateway that has ended
            runtime.mkdir(mode=0o700, parents=True)

        await asyncio.to_thread(make_places)
        env = plan.env | {
            "KG_AUTH_TOKEN": instance.own.token,
            "JUPYTER_PATH": str(self._home / "kernelspecs"),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "JUPYTER_CONFIG_DIR": str(runtime / "no-settings"),
            "JUPYTER_PLATFORM_DIRS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        options = {**_OPTIONS, "KernelGatewayApp.port": instance.port}
        words = (f"--{name}={value}" for name, value in options.items())
        return ChildSpec(UNIT, (plan.python, "-m", "kernel_gateway", *words), "/", env)

    async def ready(self, instance: GatewayInstance) -> None:
        plan = instance.own.plan
        assert instance.pid is not None
        assert plan is not None
        ended = asyncio.create_task(self.supervisor.wait(instance))
        try:
            async with asyncio.timeout_at(instance.asked_at + self.config().gateway_start_seconds):
                while not ended.done():
                    if (
                        await asyncio.to_thread(listens, instance.pid, instance.port)
                        and await instance.answers()
                    ):
                        return
                    await asyncio.wait([ended], timeout=LOOK_SECONDS)
        except TimeoutError:
            raise self._late(UNIT, stderr_tail=await self.supervisor.tail(instance)) from None
        finally:
            ended.cancel()
        end = End(Reason.EARLY_EXIT, ended.result(), await self.supervisor.last_words(instance))
        detail, hint = f"The shared gateway {how_it_ended(end)} before it answered.", OUR_LOG
        if "No module named" in end.stderr_tail and "kernel_gateway" in end.stderr_tail:
            detail = f"{plan.python} cannot run the shared gateway: it has no kernel_gateway."
            hint = f"{shlex.quote(plan.python)} -m pip install jupyter_kernel_gateway"
        raise StartFailedError(detail, hint=hint, unit=UNIT, **end.facts())

    def _late(self, unit: str, **facts: str) -> ReadinessTimeoutError:
        detail, reason = (
            "The shared gateway did not answer in time.",
            Reason.READINESS_TIMEOUT.value,
        )
        return ReadinessTimeoutError(detail, hint=OUR_LOG, unit=unit, reason=reason, **facts)

    async def release(self, instance: GatewayInstance) -> None:
        await instance.client.close()

    def gone(self, instance: GatewayInstance) -> None:
        self.last_reason = instance.end.reason if instance.end is not None else None
        if self.gateway is instance:
            self.gateway = None


def kernelspec(launch: Launch) -> str:
    """Return `kernel.json` for one kernel.

    A `$` in a value is doubled: a single one refers to a variable.
    """
    env = {**launch.env, MARK: launch.instance, "PX_UNIT": launch.unit}
    spec = {
        "argv": command(launch, CONNECTION_FILE),
        "display_name": launch.unit,
        "language": "python" if launch.interpreter else "",
        "interrupt_mode": launch.interrupt_mode,
        "env": {name: value.replace("$", "$$") for name, value in env.items()},
    }
    return json.dumps(spec, indent=1)
