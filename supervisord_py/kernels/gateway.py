"""Kernels at Jupyter servers: what this daemon has there, and the backend for somebody else's
server.

A kernel that a server starts for us is written down before it is asked for, under the id that we
propose. Its note goes after it is known to be gone; what has a note and no session is deleted by a
later sweep.
"""

from __future__ import annotations

import asyncio
import getpass
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from supervisord_py.errors import ConfigError, PxError, ReadinessTimeoutError
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.connection_file import write_private
from supervisord_py.kernels.gateway_kernel import GatewayClient, GatewayKernel, RemoteKernel
from supervisord_py.kernels.kernelspecs import NATIVE, unknown
from supervisord_py.process.model import Child, Identity
from supervisord_py.process.supervisor import Supervisor

ATTACH_SECONDS = 15.0
# a kernel that is taken over and has not answered until then is believed to be busy with a cell
BUSY_SECONDS = 2.0
MARK = "PX_INSTANCE"
_HARMLESS = re.compile(r"(LANG|TERM|TZ)\Z|LC_|PI_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|KEY|AUTH|SESSION", re.IGNORECASE)
_log = structlog.get_logger(__name__)


def remaining(deadline: float) -> float:
    """Return the seconds until a loop time, at least a little: whoever gets them then times out
    at once.
    """
    return max(0.05, deadline - asyncio.get_running_loop().time())


class RemoteKernels:
    """Kernels of one daemon at the servers of one backend, `external` or `local`; a backend is
    one of these.
    """

    writes_files = False  # its Python kernels write the files of their cells by themselves

    def __init__(
        self, supervisor: Supervisor, config: Callable[[], KernelsConfig], backend: str
    ) -> None:
        self.config = config
        self.supervisor = supervisor
        self._file = config().gateway_dir / "held" / f"{backend}.json"
        self._notes: dict[str, RemoteKernel] = {}  # by instance, as in the file
        with suppress(OSError, msgspec.MsgspecError):
            self._notes = msgspec.json.decode(self._file.read_bytes(), type=dict[str, RemoteKernel])
        self._open: dict[str, GatewayKernel] = {}
        self._writing = asyncio.Lock()

    async def client_of(self, held: RemoteKernel) -> GatewayClient | None:
        """Return who speaks with the server of a kernel that is written down; None where it is
        out of our reach.
        """
        raise NotImplementedError

    async def settle(self, kernel: GatewayKernel, launch: Launch, deadline: float) -> None:
        """Make a new Python kernel at home: ours are by their kernelspec."""

    async def spec(self, launch: Launch) -> None:
        """Nothing is spawned by us: the server does that."""

    async def start_at(
        self,
        client: GatewayClient,
        launch: Launch,
        body: Mapping[str, Any],
        *,
        deadline: float,
        wanted: str,
    ) -> GatewayKernel:
        """Have a kernel started, under the id `wanted` if the server takes it; `body`: of the POST
        without that.

        What did not come up is deleted, as far as the server can be reached.
        """
        held = RemoteKernel(
            launch.instance, launch.session_id, wanted, client.shown, time.time(), launch.tag
        )
        kernel = self._kernel(client, held, launch)
        # Each kind of server has its own place for the id that we want.
        proposed = {"env": {**body["env"], "KERNEL_ID": wanted}} if body.get("env") else {}
        try:
            await self._note(held)
            created = await client.create(
                {**body, "kernel_id": wanted, **proposed}, remaining(deadline)
            )
            if created != wanted:
                kernel.held = msgspec.structs.replace(held, kernel=created)
                await self._note(kernel.held)
            await kernel.connect(remaining(deadline))
            if await kernel.is_python(remaining(deadline)):
                await self.settle(kernel, launch, deadline)
        except BaseException:
            # In the background: the one who waited has waited long enough.
            self.supervisor.task(kernel.shutdown(0.0, ""))
            raise
        kernel.is_settled = True
        return kernel

    def _kernel(self, client: GatewayClient, held: RemoteKernel, launch: Launch) -> GatewayKernel:
        writes = self.writes_files and launch.interpreter is not None
        kernel = GatewayKernel(
            client, held, writes_files=writes, trace=self.config().trace, forget=self.forget
        )
        self._open[held.instance] = kernel
        return kernel

    async def attach(self, launch: Launch, child: Child) -> GatewayKernel | None:
        """Take over a kernel that an earlier control plane had started; None when its variables are
        lost.

        It counts only when it bears its mark: a server that restarted it still offers the id,
        without the variables; then it is deleted. One that is busy cannot say so, and is believed.
        """
        held = self._notes.get(child.key)
        client = await self.client_of(held) if held is not None else None
        if held is None or client is None:
            return None
        kernel, is_same = self._kernel(client, held, launch), False
        kernel.is_settled, kernel.early = True, deque(maxlen=10_000)
        try:
            await kernel.connect(ATTACH_SECONDS)
            mark = repr(held.instance)
            with suppress(ReadinessTimeoutError):
                if await kernel.is_python(BUSY_SECONDS):
                    mark = await kernel.evaluate(
                        "", f"__import__('os').environ.get({MARK!r})", BUSY_SECONDS
                    )
            is_same = mark == repr(held.instance) and not kernel.died.done()
        except PxError as error:
            _log.info("gateway_attach_failed", unit=kernel.unit, detail=error.detail)
        finally:
            if not is_same:
                self.supervisor.task(kernel.shutdown(0.0, ""))
        return kernel if is_same else None

    async def held(self) -> tuple[Child, ...]:
        """Return what this daemon's control planes have started and nobody has seen the end of,
        as the keeper would.
        """
        return tuple(
            Child(
                each.instance,
                f"kernel:{each.session_id}",
                Identity(0, 0, ""),
                each.started_at,
                each.tag,
                0,
            )
            for each in self._without_handle()
        )

    async def annotate(self, instance: str, tag: str) -> None:
        if (held := self._notes.get(instance)) is not None:
            await self._note(msgspec.structs.replace(held, tag=tag))

    async def sweep(self) -> int:
        """Delete kernels that no handle has, where their server is in reach; return how many."""
        deleted = 0
        for held in self._without_handle():
            if (client := await self.client_of(held)) is not None:
                try:
                    await client.delete(held.kernel)
                    await self.forget(held)
                    deleted += 1
                except PxError as error:
                    _log.info("gateway_sweep_failed", kernel=held.kernel, detail=error.detail)
        return deleted

    def _without_handle(self) -> list[RemoteKernel]:
        living = {name for name, kernel in self._open.items() if not kernel.died.done()}
        return [held for name, held in self._notes.items() if name not in living]

    async def _note(self, held: RemoteKernel) -> None:
        self._notes[held.instance] = held
        await self._save()

    async def forget(self, held: RemoteKernel) -> None:
        # no later start's
        if (known := self._notes.get(held.instance)) is not None and known.kernel == held.kernel:
            self._open.pop(held.instance, None)
            del self._notes[held.instance]
            # it is found at the next start, and deleting it once more does no harm
            with suppress(OSError):
                await self._save()

    async def _save(self) -> None:
        async with self._writing:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(write_private, self._file, msgspec.json.encode(self._notes))

    async def close(self, *, stop: bool) -> None:
        while self._open:
            await self._open.popitem()[1].close()


class GatewayExternal(RemoteKernels):
    """A `KernelBackend` for the server of the settings, which owns its processes: we interrupt and
    delete through it.

    What it cannot promise, whole output above all, is said with the result.
    """

    def __init__(self, supervisor: Supervisor, config: Callable[[], KernelsConfig]) -> None:
        super().__init__(supervisor, config, "external")
        self._clients: dict[tuple[str, str | None], GatewayClient] = {}

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> GatewayKernel:
        """Have a kernel started.

        Raises ConfigError, InvalidInputError (no such kernelspec), StartFailedError.
        """
        client = self._client()
        specs = sorted(await client.preflight())
        name = launch.kernelspec or NATIVE
        if name not in specs:
            raise unknown(name, specs, f" at the gateway {client.shown}")
        body: dict[str, Any] = {"name": name}
        if await client.is_enterprise():
            user = launch.env.get("USER", "") or await asyncio.to_thread(getpass.getuser)
            body["env"] = {"KERNEL_USERNAME": user, "KERNEL_WORKING_DIR": launch.cwd}
        return await self.start_at(
            client, launch, body, deadline=deadline, wanted=str(uuid.uuid4())
        )

    async def settle(self, kernel: GatewayKernel, launch: Launch, deadline: float) -> None:
        code = init_code(launch.cwd, launch.env, launch.instance, launch.unit)
        cwd = await kernel.evaluate(code, "__import__('os').getcwd()", remaining(deadline))
        where = kernel.held.url
        kernel.notice = f"Kernels at {where} have no prelude, no modules and no limits of ours."
        if cwd not in ("", repr(launch.cwd)):
            gone = (
                f"The directory {launch.cwd} does not exist at {where}: the kernel works in {cwd}."
            )
            kernel.notice = f"{gone} {kernel.notice}"

    async def client_of(self, held: RemoteKernel) -> GatewayClient | None:
        with suppress(ConfigError):
            client = self._client()
            return client if client.shown == held.url else None
        return None

    async def specs(self) -> Mapping[str, Mapping[str, Any]]:
        return await self._client().preflight()

    async def close(self, *, stop: bool) -> None:
        await super().close(stop=stop)
        while self._clients:
            await self._clients.popitem()[1].close()

    def _client(self) -> GatewayClient:
        config = self.config()
        if config.gateway_url is None:
            detail, hint = (
                "The backend gateway-external needs kernels.gateway_url.",
                "Set it to http://host:port.",
            )
            raise ConfigError(detail, hint=hint)
        key = (config.gateway_url, config.gateway_token)
        if key not in self._clients:
            self._clients[key] = GatewayClient(*key, config.token_setting)
        return self._clients[key]


def init_code(cwd: str, env: Mapping[str, str], instance: str, unit: str) -> str:
    """Return Python that makes a kernel at home at somebody else's server, without a trace in its
    namespace.

    Of the environment goes what is harmless by name, and no paths of this machine. A directory that
    is not there is no error here: the kernel says afterwards where it is.
    """
    variables = {
        name: value
        for name, value in env.items()
        if _HARMLESS.match(name) and not _SECRET.search(name)
    }
    variables |= {MARK: instance, "PX_UNIT": unit}
    return f"""
def _px_init(cwd, variables):
    import os, sys
    os.environ.update(variables)
    try:
        os.chdir(cwd)
    except OSError:
        return
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
_px_init({cwd!r}, {variables!r})
del _px_init
"""
