"""The default backend: kernels are the keeper's children, spoken to over ZMQ on private Unix
sockets.

Importing this is cheap; zmq comes with the first kernel. The keeper holds the processes, so they
outlive this control plane, and the next one attaches to them. The death of a kernel is what the
placement says, never what a silence seems to say; what was spawned is ended by the placement, whole
tree.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from supervisord_py.errors import ConflictError, PxError, UnknownUnitError
from supervisord_py.kernels import connection_file, messages
from supervisord_py.kernels.backend import KernelGoneError, Launch
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.kernelspecs import LAUNCHER, command
from supervisord_py.kernels.messaging import LAST_WORDS_SECONDS, MessagingKernel, PendingRequest
from supervisord_py.kernels.wire import Message
from supervisord_py.process.model import Child, ChildSpec, ExitRecord, Reason
from supervisord_py.process.supervisor import Supervisor
from supervisord_py.process.zygote_pool import Recipe, ZygotePool

HELLO_SECONDS = 1.0  # for an attached kernel to say something; a running cell may keep it from that
AGAIN_SECONDS = 0.05
# a request waits in the socket: another one is only for a kernel that bound twice
UNANSWERED_SECONDS = 1.0
RECORD_SECONDS = 5.0  # how long the exit record of a leader that was killed may take
# how long a dead kernel is read: longer than anyone waits for its words
LINGER_SECONDS = 2 * LAST_WORDS_SECONDS
WAKE_SECONDS = 0.02
# How variables begin that act while Python starts and imports: kernels that differ in one have
# different zygotes.
_EARLY: tuple[str, ...] = ("HOME", "LANG", "LC_", "LD_", "PYTHON", "GLIBC_", "MALLOC_", "OPENSSL_")
_EARLY += ("BLIS_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_")
_log = structlog.get_logger(__name__)


def recipe_of(launch: Launch) -> Recipe | None:
    """Return what a zygote for such launches is started from; None where there can be none."""
    python, paths = launch.interpreter, (launch.env.get("PYTHONPATH") or "/").split(":")
    # Siblings share the hash seed; paths are made absolute as Python starts, in the folder that it
    # is started in.
    if (
        python is None
        or "PYTHONHASHSEED" in launch.env
        or not all(it.startswith("/") for it in (python, *paths))
    ):
        return None
    try:
        with open(python, "rb") as file:
            if file.read(2) == b"#!":
                # a script that looks for an interpreter may find another one the next time
                return None
    except OSError:
        return None
    env = (each for each in launch.env.items() if each[0].startswith(_EARLY))
    overlay = () if launch.overlay is None else ("--px-overlay", launch.overlay)
    return Recipe((python, str(LAUNCHER), *overlay, "--px-zygote"), tuple(sorted(env)))


class DirectBackend:
    def __init__(self, supervisor: Supervisor, config: Callable[[], KernelsConfig]) -> None:
        self.placement = supervisor.placement
        self.config = config
        self.zygotes = ZygotePool(self.placement, "kernel", lambda: self.config().zygotes)
        self._prepared = config().run_dir / connection_file.FOLDER / connection_file.PREPARED

    def expect(self, launch: Launch) -> None:
        self.zygotes.want(recipe_of(launch), env={**launch.env, "PX_PREPARED": str(self._prepared)})

    @staticmethod
    async def preload() -> None:
        """Import zmq now, on a thread: beside the boot of the kernel's own interpreter, or
        before there is one.
        """
        await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.channels")

    async def spec(self, launch: Launch) -> ChildSpec:
        """Return what is to be spawned; makes the folder with the connection file.

        Raises OSError, ConfigError.
        """
        place = await asyncio.to_thread(
            connection_file.make, self.config().run_dir, launch.session_id
        )
        return launch.spec(command(launch, str(place.file)))

    async def fork(self, launch: Launch, spec: ChildSpec) -> Child | None:
        return await self.zygotes.fork(recipe_of(launch), (), launch.instance, spec)

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> DirectKernel:
        """Return a spawned kernel when it answers.

        Raises ReadinessTimeoutError, KernelGoneError (it ended before).
        """
        begun = asyncio.get_running_loop().time()
        await self.preload()
        kernel = DirectKernel(self, launch, child, self._connection(launch))
        try:
            async with asyncio.timeout_at(deadline):
                await kernel.until_ready()
        except BaseException as error:
            await kernel.close()
            if isinstance(error, TimeoutError):
                raise messages.not_ready(launch, deadline - begun) from None
            raise
        self.expect(launch)
        return kernel

    async def attach(self, launch: Launch, child: Child) -> DirectKernel | None:
        """Take over a kernel that an earlier control plane started.

        None when it is dead, or its connection file is gone. One that says nothing is taken: it
        runs a cell that does not let it speak.
        """
        if child.exit is not None:
            return None
        try:
            connection = await asyncio.to_thread(self._connection, launch)
        except (OSError, ValueError) as error:
            _log.warning("kernel_not_attached", unit=child.unit, instance=child.key, why=str(error))
            return None
        await self.preload()
        kernel, is_taken = DirectKernel(self, launch, child, connection), False
        try:
            asked = [
                await kernel.ask("kernel_info_request", channel=channel)
                for channel in ("shell", "control")
            ]
            await kernel.until(*(each.reply for each in asked), seconds=HELLO_SECONDS)
            is_taken = not kernel.died.done()
        finally:
            if not is_taken:
                await kernel.close()
        return kernel if is_taken else None

    def _connection(self, launch: Launch) -> connection_file.Connection:
        folder = connection_file.folder_of(self.config().run_dir, launch.session_id)
        return connection_file.read(folder / connection_file.FILE)

    async def close(self, *, stop: bool) -> None:
        await self.zygotes.close()
        await asyncio.to_thread(shutil.rmtree, self._prepared, ignore_errors=True)


class DirectKernel(MessagingKernel):
    def __init__(
        self,
        backend: DirectBackend,
        launch: Launch,
        child: Child | None,
        connection: connection_file.Connection,
    ) -> None:
        from supervisord_py.kernels.channels import KernelSockets

        name, config = f"px-{launch.instance}", backend.config()
        super().__init__(
            launch.unit, name, writes_files=launch.interpreter is not None, trace=config.trace
        )
        self.child = child
        self.connection_file = connection.file
        self._placement = backend.placement
        self._key = launch.instance
        self._by_message = launch.interrupt_mode == "message"
        self._next_rung_seconds = config.ladder_again_seconds
        self._sockets = KernelSockets(connection, name, ("iopub", "shell", "control"), self.hear)
        self._watch = asyncio.create_task(self._watch_process())

    async def _watch_process(self) -> None:
        record: ExitRecord | None = None
        # the keeper is gone, or the instance was released: how it ended is not to be had
        with suppress(PxError):
            record = await self._placement.wait(self._key)
        self.died.set_result(record)
        await asyncio.sleep(LINGER_SECONDS)
        await self._sockets.close()  # else they would go on looking for the dead one

    async def send(self, message: Message) -> None:
        if self._trace:
            self.note("sent", message)
        self._sockets.send(message)

    async def until_ready(self) -> None:
        """Return when it answered on shell, and its iopub was heard.

        A kernel_info_request is queued before the kernel binds and goes out the moment it does.
        iopub speaks by a welcome (ipykernel 7) or by the `idle` of such a request; a subscription
        may arrive after that was sent, so the request is sent again until one comes through.
        """
        asked: list[PendingRequest] = []
        while True:
            has_answered = any(each.reply.done() for each in asked)
            if has_answered and self.is_heard.done():
                return
            asked.append(await self.ask("kernel_info_request"))
            signs: list[asyncio.Future[Any]] = [each.reply for each in asked]
            if has_answered:
                signs = [self.is_heard]
            await self.until(*signs, seconds=AGAIN_SECONDS if has_answered else UNANSWERED_SECONDS)
            if self.died.done():
                raise self.gone()

    def gone(self) -> KernelGoneError:
        return KernelGoneError(f"{self.unit} is gone; how it ended is not known", unit=self.unit)

    async def interrupt(self) -> str:
        """SIGINT to the process group; or the message, where its kernelspec says so.

        A moment later any request on shell wakes a loop that took the signal but sleeps on
        (ipykernel #881). An idle kernel ignores the signal, so a cell that was sent and has not
        begun is waited for, up to the next rung.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._next_rung_seconds):
                while not self.has_begun() and not self.died.done():  # noqa: ASYNC110 - the kernel makes the files
                    await asyncio.sleep(0.002)
        if self._by_message:
            await self.ask("interrupt_request", channel="control")
            return "interrupt_request"
        if not await self._signal(signal.SIGINT):
            return "gone"
        await asyncio.sleep(WAKE_SECONDS)
        with suppress(ConflictError):
            await self.ask("kernel_info_request")
        return "sigint"

    async def terminate(self) -> str:
        return "sigterm" if await self._signal(signal.SIGTERM) else "gone"

    async def kill(self) -> str:
        """End the whole tree now. First by a plain signal, so that the keeper's record names no
        reason.

        What the end was wanted for is the caller's word, which a verdict would outvote.
        """
        if await self._signal(signal.SIGKILL):
            await asyncio.wait({self.died}, timeout=RECORD_SECONDS)
        ending = self._placement.stop(self._key, grace_seconds=0.0, reason=Reason.STOPPED.value)
        await self._placement.unless_silent(ending, "the kernel ended")
        return "sigkill"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it; returns pids of what survived, () when nothing of it is left.

        Half of the grace is the kernel's own, to end by itself; the rest is from TERM to KILL, for
        the whole tree.
        """
        loop = asyncio.get_running_loop()
        over_by = loop.time() + grace_seconds
        if grace_seconds > 0 and not self.died.done():
            with suppress(ConflictError):
                await self.ask("shutdown_request", {"restart": False}, "control")
                await asyncio.wait({self.died}, timeout=grace_seconds / 2)
        grace = max(0.0, over_by - loop.time())
        report = await self._placement.stop(self._key, grace_seconds=grace, reason=reason)
        return tuple(survivor.pid for survivor in report.survivors)

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self._sockets.close()
        await self.let_go()

    async def _signal(self, signum: int) -> bool:
        with suppress(ConflictError, UnknownUnitError):
            await self._placement.signal_group(self._key, signum)
            return True
        return False
