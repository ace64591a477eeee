"""The one gateway of this daemon, and kernels in it, each with its own project's interpreter and environment.

The gateway is an instance of the supervisor's; its note with the keeper has port and token. The next control plane goes
on with one that answers, for other sessions live in it; one that does not is stopped before another starts. Each kernel
is started by a kernelspec of its own, which runs our launcher, so that the kernel writes the files of its cells by
itself: what the gateway's websocket loses, the disk has.
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

import psutil

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.connection_file import write_private
from supervisord_py.kernels.gateway import MARK, RemoteKernels, remaining
from supervisord_py.kernels.gateway_kernel import OUR_LOG, GatewayClient, GatewayKernel, RemoteKernel
from supervisord_py.kernels.kernelspecs import CONNECTION_FILE, command
from supervisord_py.kernels.messages import early_exit, how_it_ended
from supervisord_py.process.instance import End, Instance, Phase, read_note
from supervisord_py.process.model import Child, ChildSpec, Reason
from supervisord_py.process.supervisor import Driver, Supervisor

UNIT = "kernel:gateway"
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 5.0
_KEPT = re.compile(r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|TMPDIR|TZ|XDG_DATA_HOME|XDG_CONFIG_HOME)\Z|LC_")
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


class GatewayInstance(Instance):
    def __init__(self, key: str, config: KernelsConfig, port: int, token: str, launch: Launch | None = None) -> None:
        super().__init__(key, UNIT, stop_seconds=config.stop_seconds)
        self.launch, self.port, self.token = launch, port, token
        self.client = GatewayClient(f"http://127.0.0.1:{port}", token, "")

    def own_note(self) -> dict[str, Any]:
        return {"port": self.port, "token": self.token}

    async def answers(self) -> bool:
        with suppress(PxError):
            await self.client.preflight(ANSWER_SECONDS)
            return True
        return False


def gateway_python(launch: Launch) -> str:
    can = importlib.util.find_spec("kernel_gateway") is not None
    return sys.executable if can else launch.interpreter or sys.executable


def listens(pid: int, port: int) -> bool:
    """Say whether exactly this process listens on the port of 127.0.0.1: a listener that is not gets no token."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr == ("127.0.0.1", port) for each in connections)


class GatewayLocal(RemoteKernels, Driver[GatewayInstance]):
    kind = "kernel"
    writes_files = True

    def __init__(self, supervisor: Supervisor, config: Callable[[], KernelsConfig]) -> None:
        super().__init__(supervisor, config, "local")
        self.gateway: GatewayInstance | None = None
        self._one_at_a_time = asyncio.Lock()
        self._home = config().gateway_dir

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> GatewayKernel:
        getting = asyncio.ensure_future(self._gateway_for(launch))  # goes on for those who come later
        getting.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits: it is in its log
        if not (await asyncio.wait([getting], timeout=remaining(deadline)))[0]:
            raise self._late(launch.unit)
        gateway, began = getting.result(), time.time()
        assert gateway is not None
        name = "-".join(("px", *re.findall("....", secrets.token_hex(8))))  # of kernelspec, kernel and its sockets
        folder = self._home / "kernelspecs" / "kernels" / name
        # `env` keeps the gateway's own variables out of the kernel: it gets PATH, and what the kernelspec says.
        body = {"name": name, "path": launch.cwd, "env": {}}
        try:
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(write_private, folder / "kernel.json", kernelspec(launch).encode())
            kernel = await self.start_at(gateway.client, launch, body, deadline=deadline, wanted=name)
            kernel.notice = "No limits of memory or processes hold for kernels of the shared gateway."
            return kernel
        except StartFailedError as error:
            if error.extra.get("reason") != Reason.EARLY_EXIT:
                raise
            log = await self.supervisor.tail(gateway, began)
            said = "".join(line for line in log.splitlines(keepends=True) if not _GATEWAY_LINE.match(line))
            raise early_exit(launch, End(Reason.EARLY_EXIT, None, said)) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def client_of(self, held: RemoteKernel) -> GatewayClient | None:
        """Return who speaks with the gateway, if it is the kernel's; otherwise the kernel ended with its gateway."""
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

    # -- the gateway -------------------------------------------------------------------------------------------------

    async def _gateway_for(self, launch: Launch | None) -> GatewayInstance | None:
        async with self._one_at_a_time:
            if self.gateway is None:
                await self._find()
            elif launch is not None and not (self.gateway.phase is Phase.READY and await self.gateway.answers()):
                await self._stop(self.gateway)
            if self.gateway is None and launch is not None:
                await self._start(launch)
            return self.gateway

    async def _find(self) -> None:
        for child in await self.supervisor.placement.list(UNIT):
            if child.unit != UNIT:  # a session may be called so
                continue
            note = read_note(child.tag)
            own = note.own if note is not None else {}
            instance = GatewayInstance(child.key, self.config(), own.get("port", 0), own.get("token", ""))
            instance.child, instance.record, instance.phase = child, child.exit, Phase.READY
            instance.started_at = instance.ready_at = child.started_at
            if child.exit is None and await instance.answers():
                self._watch(instance)
            else:
                await self._stop(instance)

    async def _start(self, launch: Launch) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key, token = self.supervisor.placement.new_key(), secrets.token_urlsafe(32)
        instance = GatewayInstance(key, self.config(), port, token, launch)
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

    async def _stop(self, instance: GatewayInstance) -> None:
        if instance.phase in (Phase.STARTING, Phase.READY):
            is_over = instance.error is not None or instance.record is not None
            await self.supervisor.stop(self, instance, None if is_over else Reason.STOPPED)
        await instance.stopped.wait()

    async def prepare(self, instance: GatewayInstance) -> ChildSpec:
        """Return what is to be spawned; its sockets get a private folder.

        Output is not rationed, and a kernel that dies is not restarted, which would hide that its variables are gone.
        It has no max_kernels: with one the gateway lists its kernels before each start, and that fails (500) while
        another one is just being started. What nobody uses is culled.
        """
        assert instance.launch is not None
        runtime = self.config().run_dir / "gw"

        def make_places() -> None:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(runtime, ignore_errors=True)  # of a gateway that has ended
            runtime.mkdir(mode=0o700, parents=True)

        await asyncio.to_thread(make_places)
        env = {name: value for name, value in instance.launch.env.items() if _KEPT.match(name)} | {
            "KG_AUTH_TOKEN": instance.token,
            "JUPYTER_PATH": str(self._home / "kernelspecs"),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "JUPYTER_CONFIG_DIR": str(runtime / "no-settings"),
            "JUPYTER_PLATFORM_DIRS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        options = {**_OPTIONS, "KernelGatewayApp.port": instance.port}
        words = (f"--{name}={value}" for name, value in options.items())
        return ChildSpec(UNIT, (gateway_python(instance.launch), "-m", "kernel_gateway", *words), "/", env)

    async def ready(self, instance: GatewayInstance) -> None:
        assert instance.pid is not None
        assert instance.launch is not None
        ended = asyncio.create_task(self.supervisor.wait(instance))
        try:
            async with asyncio.timeout_at(instance.asked_at + self.config().gateway_start_seconds):
                while not ended.done():
                    if await asyncio.to_thread(listens, instance.pid, instance.port) and await instance.answers():
                        return
                    await asyncio.wait([ended], timeout=LOOK_SECONDS)
        except TimeoutError:
            raise self._late(UNIT, stderr_tail=await self.supervisor.tail(instance)) from None
        finally:
            ended.cancel()
        end = End(Reason.EARLY_EXIT, ended.result(), await self.supervisor.last_words(instance))
        detail, hint = f"The shared gateway {how_it_ended(end)} before it answered.", OUR_LOG
        if "No module named" in end.stderr_tail and "kernel_gateway" in end.stderr_tail:
            python = gateway_python(instance.launch)
            detail = f"{python} cannot run the shared gateway: it has no kernel_gateway."
            hint = f"{shlex.quote(python)} -m pip install jupyter_kernel_gateway"
        raise StartFailedError(detail, hint=hint, unit=UNIT, **end.facts())

    def _late(self, unit: str, **facts: str) -> ReadinessTimeoutError:
        detail, reason = "The shared gateway did not answer in time.", Reason.READINESS_TIMEOUT.value
        return ReadinessTimeoutError(detail, hint=OUR_LOG, unit=unit, reason=reason, **facts)

    async def release(self, instance: GatewayInstance) -> None:
        await instance.client.close()

    def gone(self, instance: GatewayInstance) -> None:
        if self.gateway is instance:
            self.gateway = None


def kernelspec(launch: Launch) -> str:
    """Return `kernel.json` for one kernel. A `$` in a value is doubled: a single one refers to a variable."""
    env = {**launch.env, MARK: launch.instance, "PX_UNIT": launch.unit}
    spec = {
        "argv": command(launch, CONNECTION_FILE),
        "display_name": launch.unit,
        "language": "python" if launch.interpreter else "",
        "interrupt_mode": launch.interrupt_mode,
        "env": {name: value.replace("$", "$$") for name, value in env.items()},
    }
    return json.dumps(spec, indent=1)
