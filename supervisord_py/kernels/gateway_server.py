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
import secrets
import shlex
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import structlog

from supervisord_py.errors import ConfigError, PxError, ReadinessTimeoutError, StartFailedError, TimedOutError
from supervisord_py.kernels.gateway import write_private
from supervisord_py.kernels.gateway_client import OUR_LOG, GatewayClient
from supervisord_py.kernels.messages import decode_tail
from supervisord_py.process import host
from supervisord_py.process.logs import LogReader
from supervisord_py.process.model import ChildSpec, Identity, Liveness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ExitRecord

UNIT = "kernel:gateway"
SPECS = "kernelspecs"
ATTEMPTS = 2
"""With another port each: somebody else may have taken the first."""
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 3.0
HEALTH_TRIES = 3
"""A gateway that is busy is not dead: it is given up after so many silences."""
LONGEST_PATH = 107
_SOCKET = "kernel-px-0000-0000-0000-0000-ipc-5"
_TAIL_BYTES = 64 * 1024
_log = structlog.get_logger(__name__)


class GatewayRecord(msgspec.Struct, frozen=True):
    """A running gateway, as `gateway.json` has it; the token lies in a file of its own, 0600.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        pid, start_time, boot_id: Which process it is.
        python: Interpreter that runs it.
        started_at: Unix seconds.
        daemon: Id of the daemon whose keeper holds it.
        instance: Its key there.
    """

    url: str
    pid: int
    start_time: int
    boot_id: str
    token_file: str
    python: str = msgspec.field(name="pythonPath")
    started_at: float = msgspec.field(name="startedAt")
    daemon: str
    instance: str

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


class Running:
    """A gateway in use, and who speaks with it, token and all."""

    def __init__(self, record: GatewayRecord, token: str) -> None:
        self.record = record
        self.client = GatewayClient(record.url, token, "", is_ours=True)


class _PortTakenError(Exception):
    """Somebody else listens where the gateway was to."""


def listens(pid: int, port: int) -> bool:
    """Say whether exactly this process listens on the port of 127.0.0.1: a listener that is not gets no token."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr == ("127.0.0.1", port) for each in connections)


class SharedGateway:
    """Finds or starts the gateway. `python` chooses the interpreter that runs it; `daemon` is the id of this one."""

    def __init__(
        self, placement: KeeperClient, config: KernelsConfig, daemon: str, python: Callable[[Launch], str]
    ) -> None:
        self.config = config
        self._placement = placement
        self._daemon = daemon
        self._python = python
        self._one_at_a_time = asyncio.Lock()
        self._running: Running | None = None

    @property
    def folder(self) -> Path:
        """The directory that all who share the gateway know."""
        return self.config.gateway.dir

    @property
    def metadata(self) -> Path:
        """Where it is written down."""
        return self.folder / "gateway.json"

    def read(self) -> GatewayRecord | None:
        """Return what is written of the gateway; None where nothing sensible is. File I/O."""
        try:
            record = msgspec.json.decode(self.metadata.read_bytes(), type=GatewayRecord)
            return record if int(record.url.rpartition(":")[2]) > 0 and record.pid > 0 else None
        except (OSError, ValueError):
            return None

    async def get(self, launch: Launch) -> Running:
        """Return the gateway, started if need be.

        Raises:
            TimedOutError: Another daemon held the lock all the time.
            ConfigError: The runtime directory's path is too long for its sockets.
            StartFailedError: It did not come up.
        """
        async with self._one_at_a_time:
            if (running := await self._in_use()) is not None:
                return running
            await asyncio.to_thread(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            async with self._locked():
                self._running = await self._find() or await self._start(launch)
            return self._running

    async def find(self) -> Running | None:
        """Return the gateway if one runs; starts none."""
        async with self._one_at_a_time:
            if await self._in_use() is None and await asyncio.to_thread(self.metadata.exists):
                async with self._locked():
                    self._running = await self._find()
            return self._running

    async def is_healthy(self, running: Running) -> bool:
        """Say whether it answers; it is asked several times before it is given up."""
        for _ in range(HEALTH_TRIES):
            if not running.record.is_there:
                return False
            with contextlib.suppress(PxError):
                await running.client.preflight(ANSWER_SECONDS)
                return True
        return False

    async def give_up(self, running: Running) -> None:
        """Have done with a gateway that does not answer: ours is stopped, another daemon's is left to it."""
        async with self._one_at_a_time, self._locked():
            if self._running is running:
                await self._discard(running.record)
                await self._let_go()

    async def close(self, *, stop: bool) -> None:
        """Let go of it; with `stop`, end it if it is ours, whoever else uses it."""
        if self._running is not None and stop and self._running.record.daemon == self._daemon:
            async with self._locked():
                await self._discard(self._running.record)
        await self._let_go()

    # -- finding -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the lock, which ends with its holder, however that ends.

        Raises:
            TimedOutError: Another daemon has held it for too long.
        """
        path, seconds = self.folder / "gateway.lock", self.config.gateway.lock_seconds
        give_up_at = asyncio.get_running_loop().time() + seconds
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if asyncio.get_running_loop().time() >= give_up_at:
                        raise TimedOutError(
                            f"Timed out waiting for shared gateway lock: {path} is held for more than {seconds:g} s.",
                            hint="Another daemon is starting the gateway; see its log, and try again.",
                        ) from None
                    await asyncio.sleep(LOOK_SECONDS)
            yield
        finally:
            os.close(fd)

    async def _in_use(self) -> Running | None:
        """Return the gateway that is in use; one that has ended is let go."""
        if self._running is not None and not self._running.record.is_there:
            await self._let_go()
        return self._running

    async def _let_go(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.client.close()

    async def _find(self) -> Running | None:
        """Return the gateway that is written down, if it can be used; clean up otherwise."""
        record = await asyncio.to_thread(self.read)
        found = await self._use(record) if record is not None else None
        if found is None and record is not None:
            _log.info("gateway_stale", url=record.url, pid=record.pid)
            await self._discard(record)
        for child in await self._placement.list(UNIT):  # ours, and nobody wrote them down: a control plane ended
            if child.unit == UNIT and (found is None or child.key != found.record.instance):
                await self._stop(child.key)
        return found

    async def _use(self, record: GatewayRecord) -> Running | None:
        token = await asyncio.to_thread(record.token) if record.is_there else None
        port = int(record.url.rpartition(":")[2])
        if token is None or not await asyncio.to_thread(listens, record.pid, port):
            return None
        running = Running(record, token)
        if await self.is_healthy(running):
            return running
        await running.client.close()
        return None

    async def _discard(self, record: GatewayRecord) -> None:
        """Clean up after a gateway, unless another's is written down by now; the process is stopped if it is ours."""
        if record.daemon == self._daemon:
            await self._stop(record.instance)

        def remove() -> None:
            present = self.read()
            if present is None or present.instance == record.instance:
                self.metadata.unlink(missing_ok=True)
            (self.folder / f"token-{record.instance}").unlink(missing_ok=True)

        await asyncio.to_thread(remove)

    async def _stop(self, key: str) -> None:
        await self._placement.stop(key, grace_seconds=self.config.stop_seconds, reason="stopped")
        await self._placement.release(key)

    # -- starting ----------------------------------------------------------------------------------------------------

    async def _start(self, launch: Launch) -> Running:
        runtime = self.config.run_dir / "gw"
        if len(str(runtime / _SOCKET).encode()) > LONGEST_PATH:
            raise ConfigError(
                f"The runtime directory {self.config.run_dir} is too long for the sockets of kernels.",
                hint="Choose a shorter one: PX_HOME, or RUNTIME_DIRECTORY under systemd.",
            )
        give_up_at = asyncio.get_running_loop().time() + self.config.gateway.start_seconds
        for _ in range(ATTEMPTS):
            await asyncio.to_thread(shutil.rmtree, runtime, ignore_errors=True)  # of a gateway that has ended
            await asyncio.to_thread(runtime.mkdir, mode=0o700, parents=True)
            try:
                return await self._try_to_start(launch, runtime, give_up_at)
            except _PortTakenError:
                continue
        raise StartFailedError(
            f"The shared gateway found its port taken {ATTEMPTS} times.", unit=UNIT, reason="early_exit"
        )

    async def _try_to_start(self, launch: Launch, runtime: Path, give_up_at: float) -> Running:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        python, token, key = self._python(launch), secrets.token_urlsafe(32), self._placement.new_key()
        argv = gateway_argv(python, port, cull_idle_seconds=self.config.gateway.cull_idle_seconds)
        env = gateway_env(launch.env, token, self.folder / SPECS, runtime)
        child = await self._placement.spawn(key, ChildSpec(unit=UNIT, argv=argv, cwd="/", env=env))
        token_file, who = self.folder / f"token-{key}", child.identity
        running = Running(
            GatewayRecord(
                f"http://127.0.0.1:{port}",
                *(who.pid, who.start_time, who.boot_id, str(token_file), python, time.time(), self._daemon, key),
            ),
            token,
        )
        try:
            await self._until_ready(running, child, port, give_up_at)
            await asyncio.to_thread(write_private, token_file, token)
            await asyncio.to_thread(write_private, self.metadata, msgspec.json.encode(running.record))
        except BaseException:
            await running.client.close()
            with contextlib.suppress(PxError):  # the keeper is gone, and with it all that it held
                await asyncio.shield(self._stop(key))
            raise
        return running

    async def _until_ready(self, running: Running, child: Child, port: int, give_up_at: float) -> None:
        """Return when its own process listens on the port that was chosen for it, and answers to its token."""
        ended = asyncio.create_task(self._placement.wait(child.key))
        try:
            while not ended.done():
                if await asyncio.to_thread(listens, child.identity.pid, port):
                    with contextlib.suppress(PxError):
                        await running.client.preflight(ANSWER_SECONDS)
                        return
                if asyncio.get_running_loop().time() > give_up_at:
                    raise ReadinessTimeoutError(
                        f"The shared gateway did not answer in time ({self.config.gateway.start_seconds:g} s).",
                        hint=OUR_LOG,
                        unit=UNIT,
                        reason="readiness_timeout",
                        stderr_tail=await asyncio.to_thread(log_tail, self._placement, child.log_position),
                    )
                await asyncio.wait([ended], timeout=LOOK_SECONDS)
            raise await self._ended(ended.result(), running.record.python)
        finally:
            ended.cancel()

    async def _ended(self, record: ExitRecord, python: str) -> Exception:
        tail = await asyncio.to_thread(log_tail, self._placement, record.log_position, record.log_end)
        if "already in use" in tail:
            return _PortTakenError()
        how = f"signal {record.signal}" if record.signal else f"code {record.code}"
        detail, hint = f"The shared gateway exited during startup ({how}).", OUR_LOG
        if "No module named" in tail and "kernel_gateway" in tail:
            detail = f"{python} cannot run the shared gateway: it has no kernel_gateway."
            hint = f"{shlex.quote(python)} -m pip install jupyter_kernel_gateway"
        facts = {"reason": "early_exit", "code": record.code, "signal": record.signal, "stderr_tail": tail}
        return StartFailedError(detail, hint=hint, unit=UNIT, **facts)


def log_tail(placement: KeeperClient, start: int, end: int | None = None) -> str:
    """Return the end of what was said between two positions of the gateway's log. Blocking."""
    try:
        reader = LogReader.of(placement.log_dir, UNIT)
        raw = reader.tail_bytes(start, reader.end() if end is None else end, None, _TAIL_BYTES)
    except OSError:
        return ""
    return decode_tail(raw, _TAIL_BYTES)


# -- how it is run; pure ---------------------------------------------------------------------

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_GATEWAY = (
    "import runpy, sys; sys.modules['rfc3987_syntax'] = None; "
    "runpy.run_module('kernel_gateway', run_name='__main__', alter_sys=True)"
)
"""Run as `-m` does, but without a package that jsonschema asks for the format of addresses: that builds a grammar as it
is imported, a second of each start."""


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
    """Return the environment of a gateway: of the kernel's for which it is started a few names, and the secret token.

    `specs`: folder that JUPYTER_PATH is to name; `runtime`: private, for connection files and sockets.
    """
    kept = {name: value for name, value in env.items() if name in _KEPT or name.startswith("LC_")}
    return {
        **kept,
        "KG_AUTH_TOKEN": token,
        "JUPYTER_PATH": str(specs),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(runtime / "no-settings"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONUNBUFFERED": "1",
    }
