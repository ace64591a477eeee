"""The one gateway of this daemon: found again by the next control plane, or started, and stopped by its owner.

What is written in `gateway.json` is used only while its process is ours and answers to its token; whatever else of ours
is there is stopped first. A gateway that answers is never replaced: other sessions live in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
import shutil
import socket
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import structlog

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.connection_file import write_private
from supervisord_py.kernels.gateway_client import OUR_LOG, GatewayClient
from supervisord_py.process.instance import Instance, Phase
from supervisord_py.process.model import ChildSpec, Reason
from supervisord_py.process.supervisor import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.instance import Note
    from supervisord_py.process.model import Child
    from supervisord_py.process.supervisor import Supervisor

UNIT = "kernel:gateway"
SPECS = "kernelspecs"
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 5.0
_KEPT = re.compile(r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|TMPDIR|TZ|XDG_DATA_HOME|XDG_CONFIG_HOME)\Z|LC_")
_GATEWAY = (
    "import runpy, sys; sys.modules['rfc3987_syntax'] = None; "
    "runpy.run_module('kernel_gateway', run_name='__main__', alter_sys=True)"
)
"""Run as `-m` does, but without a package that jsonschema asks for the format of addresses: that builds a grammar as it
is imported, a second of each start."""
_log = structlog.get_logger(__name__)


class GatewayRecord(msgspec.Struct, frozen=True):
    """A running gateway, as `gateway.json` has it; the token lies in a file of its own, 0600."""

    url: str  # http://127.0.0.1:PORT
    pid: int
    token_file: str
    instance: str  # its key with the keeper
    python: str = msgspec.field(name="pythonPath")  # interpreter that runs it
    started_at: float = msgspec.field(name="startedAt")  # Unix seconds


def listens(pid: int, port: int) -> bool:
    """Say whether exactly this process listens on the port of 127.0.0.1: a listener that is not gets no token."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr == ("127.0.0.1", port) for each in connections)


class GatewayInstance(Instance):
    """The gateway that this daemon runs."""

    def __init__(self, key: str, config: KernelsConfig, python: str = "", env: Mapping[str, str] | None = None) -> None:
        super().__init__(key, UNIT, stop_seconds=config.stop_seconds)
        self.python = python
        self.env = env or {}
        self.give_up_at = self.asked_at + config.gateway.start_seconds
        self.client: GatewayClient | None = None


class SharedGateway(Driver[GatewayInstance]):
    """Finds or starts the gateway, and is its `Driver`. `python` chooses the interpreter that runs it."""

    kind = "kernel"

    def __init__(self, supervisor: Supervisor, config: KernelsConfig, python: Callable[[Launch], str]) -> None:
        self.config = config
        self.folder = config.gateway.dir
        self.supervisor = supervisor
        self.own: GatewayInstance | None = None
        self._python = python
        self._one_at_a_time = asyncio.Lock()

    async def get(self, launch: Launch | None = None) -> GatewayClient | None:
        """Return who speaks with the gateway, started for `launch` if none runs. Raises StartFailedError."""
        async with self._one_at_a_time:
            if self.own is not None and self.own.phase is not Phase.READY:
                await self.own.stopped.wait()
            if self.own is None:
                await self._find()
            if self.own is None and launch is not None:
                await self._start(launch)
            return self.own.client if self.own is not None else None

    async def give_up_if_silent(self, client: GatewayClient) -> None:
        """Stop a gateway that does not answer, so that the next one who asks gets another."""
        with contextlib.suppress(PxError):
            await client.preflight(ANSWER_SECONDS)
            return
        async with self._one_at_a_time:
            if self.own is not None and self.own.client is client:
                _log.warning("gateway_unhealthy", url=client.shown)
                await self._stop(self.own)

    async def close(self, *, stop: bool) -> None:
        """Let go of it; with `stop`, end it."""
        if self.own is not None and stop:
            await self._stop(self.own)
        elif self.own is not None and self.own.client is not None:
            await self.own.client.close()

    # -- finding, starting, stopping ---------------------------------------------------------------------------------

    def read(self) -> GatewayRecord | None:
        """Return what is written of the gateway; None where nothing sensible is. File I/O."""
        try:
            return msgspec.json.decode((self.folder / "gateway.json").read_bytes(), type=GatewayRecord)
        except (OSError, ValueError):
            return None

    async def _find(self) -> None:
        """Take the gateway of an earlier control plane, if it can be used; stop what cannot."""
        record = await asyncio.to_thread(self.read)
        for child in await self.supervisor.placement.list(UNIT):
            if child.unit != UNIT:  # a session may be called so
                continue
            instance = self.revive(child, None)
            if record is not None and record.instance == child.key and await self._answers(instance, record):
                self._watched(instance)
            else:
                await self._stop(instance)

    async def _answers(self, instance: GatewayInstance, record: GatewayRecord) -> bool:
        try:
            token = await asyncio.to_thread(self._token.read_text)
            instance.client = GatewayClient(record.url, token, "", is_ours=True)
            await instance.client.preflight(ANSWER_SECONDS)
        except (PxError, OSError):
            return False
        return instance.record is None

    @property
    def _token(self) -> Path:
        return self.folder / "token"

    async def _start(self, launch: Launch) -> None:
        instance = GatewayInstance(self.supervisor.placement.new_key(), self.config, self._python(launch), launch.env)
        try:
            await asyncio.to_thread(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            await self.supervisor.start(self, instance)
            url, pid = f"http://127.0.0.1:{instance.port}", instance.pid or 0
            record = GatewayRecord(url, pid, str(self._token), instance.key, instance.python, time.time())
            await asyncio.to_thread(write_private, self.folder / "gateway.json", msgspec.json.encode(record))
        except BaseException:
            await asyncio.shield(self._stop(instance))
            raise
        self.supervisor.became_ready(instance)
        self._watched(instance)

    def _watched(self, instance: GatewayInstance) -> None:
        self.own = instance
        self.supervisor.task(self._watch(instance))

    async def _watch(self, instance: GatewayInstance) -> None:
        await self.supervisor.wait(instance)
        if instance.phase is Phase.READY:
            await self.supervisor.stop(self, instance, None)

    async def _stop(self, instance: GatewayInstance) -> None:
        if instance.phase in (Phase.STARTING, Phase.READY):
            is_over = instance.error is not None or instance.record is not None
            await self.supervisor.stop(self, instance, None if is_over else Reason.STOPPED)
        await instance.stopped.wait()

    async def prepare(self, instance: GatewayInstance) -> ChildSpec:
        """Return what is to be spawned: a free port, a secret token, a private folder for its sockets."""
        runtime = self.config.run_dir / "gw"
        await asyncio.to_thread(shutil.rmtree, runtime, ignore_errors=True)  # of a gateway that has ended
        await asyncio.to_thread(runtime.mkdir, mode=0o700, parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            instance.port = int(probe.getsockname()[1])
        token = secrets.token_urlsafe(32)
        await asyncio.to_thread(write_private, self._token, token.encode())
        instance.client = GatewayClient(f"http://127.0.0.1:{instance.port}", token, "", is_ours=True)
        argv = gateway_argv(instance.python, instance.port)
        env = gateway_env(instance.env, token, self.folder / SPECS, runtime)
        return ChildSpec(unit=UNIT, argv=argv, cwd="/", env=env)

    async def ready(self, instance: GatewayInstance) -> None:
        """Return when its own process listens on the port that was chosen for it, and answers to its token."""
        assert instance.pid is not None
        assert instance.client is not None
        ended = asyncio.create_task(self.supervisor.wait(instance))
        try:
            while not ended.done():
                if await asyncio.to_thread(listens, instance.pid, instance.port):
                    with contextlib.suppress(PxError):
                        await instance.client.preflight(ANSWER_SECONDS)
                        return
                if asyncio.get_running_loop().time() > instance.give_up_at:
                    raise ReadinessTimeoutError(
                        f"The shared gateway did not answer in time ({self.config.gateway.start_seconds:g} s).",
                        hint=OUR_LOG,
                        unit=UNIT,
                        reason="readiness_timeout",
                        stderr_tail=await self.supervisor.tail(instance),
                    )
                await asyncio.wait([ended], timeout=LOOK_SECONDS)
        finally:
            ended.cancel()
        record, tail = ended.result(), await self.supervisor.last_words(instance)
        how = f"code {record.code}" if record.signal is None else f"signal {record.signal}"
        detail, hint = f"The shared gateway exited during startup ({how}).", OUR_LOG
        if "No module named" in tail and "kernel_gateway" in tail:
            detail = f"{instance.python} cannot run the shared gateway: it has no kernel_gateway."
            hint = f"{shlex.quote(instance.python)} -m pip install jupyter_kernel_gateway"
        facts = {"reason": "early_exit", "code": record.code, "signal": record.signal, "stderr_tail": tail}
        raise StartFailedError(detail, hint=hint, unit=UNIT, **facts)

    def revive(self, child: Child, note: Note | None) -> GatewayInstance:
        """Return the instance of a gateway that an earlier control plane started."""
        instance = GatewayInstance(child.key, self.config)
        instance.child, instance.record, instance.phase = child, child.exit, Phase.READY
        instance.started_at = instance.ready_at = child.started_at
        return instance

    async def adopt(self, instance: GatewayInstance, note: Note) -> bool:
        """Say no: it is found by `gateway.json`, when somebody asks for it."""
        return False

    def interrupt(self, instance: GatewayInstance) -> None:
        """Its kernels hear of its end by their websockets."""

    async def release(self, instance: GatewayInstance) -> None:
        """Close our connections to it, and remove what is written down of it."""
        if instance.client is not None:
            await instance.client.close()
        if (record := self.read()) is None or record.instance == instance.key:
            for file in (self.folder / "gateway.json", self._token):
                file.unlink(missing_ok=True)

    def gone(self, instance: GatewayInstance) -> None:
        """The next one who asks starts another."""
        if self.own is instance:
            self.own = None


def gateway_argv(python: str, port: int) -> tuple[str, ...]:
    """Return the command line of a gateway: nobody without the token gets anything, output is not rationed, and a
    kernel that dies is not restarted, which would hide that its variables are gone.

    It has no max_kernels: with one the gateway lists its kernels before each start, and that fails (500) while another
    one is just being started. Each daemon bounds its own sessions, and what nobody uses is culled.
    """
    return (
        python,
        "-c",
        _GATEWAY,
        "--KernelGatewayApp.ip=127.0.0.1",
        f"--KernelGatewayApp.port={port}",
        "--KernelGatewayApp.port_retries=0",
        "--KernelGatewayApp.api=kernel_gateway.jupyter_websocket",
        "--KernelGatewayApp.allow_origin=",
        "--JupyterWebsocketPersonality.list_kernels=True",
        "--ZMQChannelsWebsocketConnection.limit_rate=False",
        "--MappingKernelManager.cull_idle_timeout=3600",
        "--MappingKernelManager.cull_interval=30",
        "--MappingKernelManager.root_dir=/",
        "--KernelManager.transport=ipc",
        "--KernelManager.shutdown_wait_time=2.0",
        "--KernelRestarter.restart_limit=0",
        "--KernelRestarter.time_to_dead=1.0",
    )


def gateway_env(env: Mapping[str, str], token: str, specs: Path, runtime: Path) -> dict[str, str]:
    """Return the environment of a gateway: a few names of the kernel's for which it is started, and the secret token.

    `specs`: folder that JUPYTER_PATH is to name; `runtime`: private, for connection files and sockets.
    """
    return {
        **{name: value for name, value in env.items() if _KEPT.match(name)},
        "KG_AUTH_TOKEN": token,
        "JUPYTER_PATH": str(specs),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(runtime / "no-settings"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONUNBUFFERED": "1",
    }
