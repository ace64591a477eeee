"""The one gateway on this machine that daemons share: found, or started, and stopped by its owner.

It is found by `gateway.json`, or started, under a lock (flock) among daemons. What is found is used only when it is the
recorded process, listens on the recorded port, and answers to its token; what does not is cleaned away, and killed only
if it is our own. A gateway that answers is never replaced: other sessions live in it. It ends with the daemon that
started it, whoever else uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
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

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError, TimedOutError
from supervisord_py.kernels.gateway import write_private
from supervisord_py.kernels.gateway_client import OUR_LOG, GatewayClient
from supervisord_py.process import host
from supervisord_py.process.instance import Instance, Phase
from supervisord_py.process.model import ChildSpec, Identity, Liveness, Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
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
    start_time: int
    boot_id: str
    token_file: str
    daemon: str  # id of the daemon whose keeper holds it
    instance: str  # its key there
    python: str = msgspec.field(name="pythonPath")  # interpreter that runs it
    started_at: float = msgspec.field(name="startedAt")  # Unix seconds

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    @property
    def is_there(self) -> bool:
        """Whether this very process lives."""
        return host.liveness(Identity(self.pid, self.start_time, self.boot_id)) is not Liveness.DEAD

    def token(self) -> str | None:
        """Return the token; None when its file is gone, or may be read by others. File I/O."""
        try:
            fd = os.open(self.token_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        with os.fdopen(fd, encoding="ascii", errors="replace") as file:
            status = os.fstat(file.fileno())
            is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            return file.read().strip() or None if is_private else None


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


class SharedGateway:
    """Finds or starts the gateway, and is its `Driver`. `python` chooses the interpreter that runs it."""

    kind = "kernel"

    def __init__(
        self, supervisor: Supervisor, config: KernelsConfig, daemon: str, python: Callable[[Launch], str]
    ) -> None:
        self.config = config
        self.folder = config.gateway.dir
        """The directory that all who share the gateway know."""
        self.supervisor = supervisor
        self._daemon = daemon
        self._python = python
        self._one_at_a_time = asyncio.Lock()
        self.record: GatewayRecord | None = None  # of the one in use, with who speaks with it, token and all
        self.client: GatewayClient | None = None
        self.own: GatewayInstance | None = None

    async def get(self, launch: Launch | None = None) -> GatewayClient | None:
        """Return who speaks with the gateway, started for `launch` if none runs.

        Raises:
            TimedOutError: Another daemon held the lock all the time.
            StartFailedError, ConfigError: It did not come up.
        """
        async with self._one_at_a_time:
            if self.record is not None and not self.record.is_there:
                await self._let_go()
            if self.client is not None:
                return self.client
            if launch is None and not await asyncio.to_thread((self.folder / "gateway.json").exists):
                return None
            await asyncio.to_thread(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            async with self._locked():
                if not await self._find() and launch is not None:
                    await self._start(launch)
            return self.client

    async def give_up_if_silent(self, client: GatewayClient) -> None:
        """Have done with a gateway that does not answer, so that the next one who asks gets another; others live in it,
        so one that does is never replaced. Ours is stopped, another daemon's is left to it.
        """
        with contextlib.suppress(PxError):
            await client.preflight(ANSWER_SECONDS)
            return
        async with self._one_at_a_time, self._locked():
            if self.client is client and self.record is not None:
                _log.warning("gateway_unhealthy", url=self.record.url)
                await asyncio.to_thread(self._remove, self.record.instance)
                await self.close(stop=True)

    async def close(self, *, stop: bool) -> None:
        """Let go of it; with `stop`, end it if it is ours, whoever else uses it."""
        await self._let_go()
        if stop and self.own is not None:
            await self._stop(self.own)

    async def _let_go(self) -> None:
        client, self.client, self.record = self.client, None, None
        if client is not None:
            await client.close()

    # -- finding -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the lock, which ends with its holder, however that ends; TimedOutError if another one keeps it."""
        path, seconds = self.folder / "gateway.lock", self.config.gateway.lock_seconds
        give_up_at = asyncio.get_running_loop().time() + seconds
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _lock(fd):
                if asyncio.get_running_loop().time() >= give_up_at:
                    raise TimedOutError(
                        f"Timed out waiting for shared gateway lock: {path} is held for more than {seconds:g} s.",
                        hint="Another daemon is starting the gateway; see its log, and try again.",
                    )
                await asyncio.sleep(LOOK_SECONDS)
            yield
        finally:
            os.close(fd)

    def read(self) -> GatewayRecord | None:
        """Return what is written of the gateway; None where nothing sensible is. File I/O."""
        try:
            record = msgspec.json.decode((self.folder / "gateway.json").read_bytes(), type=GatewayRecord)
            return record if record.port > 0 and record.pid > 0 else None
        except (OSError, ValueError):
            return None

    def _remove(self, key: str) -> None:
        """Remove what is written of a gateway, unless another's is written down by now."""
        present = self.read()
        if present is None or present.instance == key:
            (self.folder / "gateway.json").unlink(missing_ok=True)
        (self.folder / f"token-{key}").unlink(missing_ok=True)

    async def _find(self) -> bool:
        """Take the gateway that is written down, if it can be used; clean up otherwise."""
        record = await asyncio.to_thread(self.read)
        found = record is not None and await self._use(record)
        for child in await self.supervisor.placement.list(UNIT):
            if child.unit == UNIT and not (found and record is not None and child.key == record.instance):
                own = self.own if self.own is not None and self.own.key == child.key else None
                await self._stop(own or self.revive(child, None))
        if record is not None and not found:
            _log.info("gateway_stale", url=record.url, pid=record.pid)
            await asyncio.to_thread(self._remove, record.instance)
        return found

    async def _use(self, record: GatewayRecord) -> bool:
        token = await asyncio.to_thread(record.token) if record.is_there else None
        if token is None or not await asyncio.to_thread(listens, record.pid, record.port):
            return False
        client = GatewayClient(record.url, token, "", is_ours=True)
        try:
            await client.preflight(ANSWER_SECONDS)
        except PxError:
            await client.close()
            return False
        child = await self.supervisor.placement.attach(record.instance) if record.daemon == self._daemon else None
        if child is not None:
            self._watched(self.revive(child, None), client)
        self.record, self.client = record, client
        return True

    # -- starting and stopping ---------------------------------------------------------------------------------------

    async def _start(self, launch: Launch) -> None:
        key = self.supervisor.placement.new_key()
        instance = GatewayInstance(key, self.config, self._python(launch), launch.env)
        try:
            await self.supervisor.start(self, instance)
            assert instance.child is not None
            assert instance.client is not None
            who = instance.child.identity
            record = GatewayRecord(
                url=f"http://127.0.0.1:{instance.port}",
                pid=who.pid,
                start_time=who.start_time,
                boot_id=who.boot_id,
                token_file=str(self.folder / f"token-{key}"),
                daemon=self._daemon,
                instance=key,
                python=instance.python,
                started_at=time.time(),
            )
            await asyncio.to_thread(write_private, self.folder / "gateway.json", msgspec.json.encode(record))
        except BaseException:
            await asyncio.shield(self._stop(instance))
            raise
        self.supervisor.became_ready(instance)
        self._watched(instance, instance.client)
        self.record, self.client = record, instance.client

    def _watched(self, instance: GatewayInstance, client: GatewayClient) -> None:
        self.own, instance.client = instance, client
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
        await asyncio.to_thread(write_private, self.folder / f"token-{instance.key}", token)
        instance.client = GatewayClient(f"http://127.0.0.1:{instance.port}", token, "", is_ours=True)
        argv = gateway_argv(instance.python, instance.port, cull_idle_seconds=self.config.gateway.cull_idle_seconds)
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
        del note  # `gateway.json` says more
        instance = GatewayInstance(child.key, self.config)
        instance.child, instance.record = child, child.exit
        instance.started_at = instance.ready_at = child.started_at
        instance.phase = Phase.READY
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
        await asyncio.to_thread(self._remove, instance.key)

    def gone(self, instance: GatewayInstance) -> None:
        """The next one who asks starts another."""
        if self.own is instance:
            self.own = None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def gateway_argv(python: str, port: int, *, cull_idle_seconds: float) -> tuple[str, ...]:
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
        f"--MappingKernelManager.cull_idle_timeout={max(1, round(cull_idle_seconds))}",
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
