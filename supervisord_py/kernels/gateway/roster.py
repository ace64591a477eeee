"""The kernels that one backend has at servers: started, taken over, forgotten.

Law: a kernel that a server started for us is written down before anything is asked of it, and deleted when its start
does not come to its end; where the server's answer never came, the id that we proposed is deleted. What a server did
not delete when that was wanted is deleted when the server is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import Started
from supervisord_py.kernels.gateway.handle import KernelPlan
from supervisord_py.kernels.gateway.held import Held, HeldKernels
from supervisord_py.kernels.gateway.opening import open_again, open_new, remaining
from supervisord_py.process.spec import Child, Identity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.client import GatewayClient
    from supervisord_py.kernels.gateway.handle import GatewayKernel

UNDO_SECONDS = 5.0
_UNIT = "kernel:"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """One kernel to be started at a server.

    Attributes:
        body: Of the POST, without the id.
        code: Python to be run silently first.
        spool: The kernel will write the files of its cells.
        wanted_id: Id to propose to the server, "" for any.
        patience_seconds: How long the kernel may say nothing, of the time that is left at most half; None is all of it.
    """

    launch: Launch
    body: Mapping[str, object]
    code: str | None
    spool: bool
    deadline: float
    on_spawned: Callable[[Started], Awaitable[None]]
    wanted_id: str = ""
    patience_seconds: float | None = None


class KernelRoster:
    """Kernels of one daemon at the servers of one backend."""

    def __init__(self, config: KernelsConfig, daemon: str, backend: str) -> None:
        self.config = config
        self._daemon = daemon
        self._notes = HeldKernels(config.gateway.dir / "held" / backend)
        self._living: dict[str, GatewayKernel] = {}
        self._open: set[GatewayKernel] = set()
        self._writing = asyncio.Lock()
        self._undoing: set[asyncio.Task[None]] = set()
        self._left: list[Held] = []

    # -- up ----------------------------------------------------------------------------------------------------------

    async def start(self, client: GatewayClient, start: Start, phases: dict[str, float]) -> GatewayKernel:
        """Have a kernel started and return it when it answers.

        Raises:
            SilentKernelError: The server has started it, and it says nothing; another one may.
            PxError: It did not come up; nothing of it is left, as far as the server can be reached.
        """
        wanted = start.wanted_id or str(uuid.uuid4())
        kernel_id, began = wanted, time.monotonic()
        try:
            kernel_id = await client.create(_proposing(start.body, wanted), remaining(start.deadline))
            phases["post"] = time.monotonic() - began
            held = self._held_of(client, start.launch, kernel_id)
            await self._write(held)
            await start.on_spawned(Started(None, phases))
            plan = self._plan(client, held, spool=start.spool)
            kernel = await open_new(plan, start.code, start.deadline, phases, _first_word_by(start))
        except BaseException:
            self._undo(client, start.launch.instance, kernel_id)
            raise
        await self._write(kernel.plan.held)
        self._take(kernel)
        return kernel

    async def attach(self, client: GatewayClient, held: Held, *, spool: bool) -> GatewayKernel | None:
        """Take over a kernel; None when it is gone or its state is, and then it is deleted."""
        kernel = await open_again(self._plan(client, held, spool=spool))
        if kernel is None:
            self._undo(client, held.instance, held.kernel)
            return None
        self._take(kernel)
        return kernel

    # -- what is held ------------------------------------------------------------------------------------------------

    def living(self) -> tuple[GatewayKernel, ...]:
        """Return the handles of kernels that are not lost."""
        return tuple(self._living.values())

    async def find(self, instance: str) -> Held | None:
        """Return the note of a kernel."""
        return await asyncio.to_thread(self._notes.read, instance)

    async def held(self) -> tuple[Child, ...]:
        """Return what this daemon's control planes have started and nobody has seen the end of, as the keeper would."""
        return tuple(_child(each) for each in await self.forgotten())

    async def annotate(self, instance: str, tag: str) -> None:
        """Replace the room's note with a kernel."""
        async with self._writing:
            held = await asyncio.to_thread(self._notes.read, instance)
            if held is not None:
                await asyncio.to_thread(self._notes.write, replace(held, tag=tag))

    async def forgotten(self) -> tuple[Held, ...]:
        """Return the notes of kernels that no handle has, when what is being deleted is gone."""
        if self._undoing:
            await asyncio.wait(set(self._undoing))
        notes = await asyncio.to_thread(self._notes.of, self._daemon)
        return tuple(each for each in notes if each.instance not in self._living)

    async def delete(self, client: GatewayClient, held: Held) -> bool:
        """Delete a kernel that nobody has; its note goes when the server says that it is gone."""
        try:
            await client.delete(held.kernel)
        except PxError as error:
            _log.info("gateway_sweep_failed", kernel=held.kernel, detail=error.detail)
            return False
        await asyncio.to_thread(self._notes.remove, held.instance)
        return True

    def delete_left(self, client: GatewayClient) -> None:
        """Delete in the background what a server had not deleted when that was wanted: it answers again."""
        back = [each for each in self._left if each.url == client.place.shown]
        self._left = [each for each in self._left if each not in back]
        for each in back:
            self._undo(client, each.instance, each.kernel)

    async def forget(self, held: Held) -> None:
        """Remove the note of a kernel whose server is gone."""
        await asyncio.to_thread(self._notes.remove, held.instance)

    async def close(self) -> None:
        """Let go of all connections; the kernels go on living."""
        for kernel in tuple(self._open):
            await kernel.close()
        self._living.clear()
        if self._undoing:
            await asyncio.wait(set(self._undoing))

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _plan(self, client: GatewayClient, held: Held, *, spool: bool) -> KernelPlan:
        nudge = self.config.ladder.nudge_seconds
        silent = self.config.gateway.silent_output_seconds
        return KernelPlan(client, held, self._notes, spool, nudge, self.config.trace, silent)

    def _held_of(self, client: GatewayClient, launch: Launch, kernel: str) -> Held:
        return Held(
            instance=launch.instance,
            session_id=launch.session_id,
            kernel=kernel,
            url=client.place.shown,
            session=uuid.uuid4().hex,
            started_at=time.time(),
            tag=launch.tag,
        )

    async def _write(self, held: Held) -> None:
        """Write a note; a tag that the room gave it meanwhile stays."""
        async with self._writing:
            present = await asyncio.to_thread(self._notes.read, held.instance)
            tag = present.tag if present is not None else held.tag
            await asyncio.to_thread(self._notes.write, replace(held, tag=tag))

    def _take(self, kernel: GatewayKernel) -> None:
        instance = kernel.plan.held.instance
        self._living[instance] = kernel
        self._open.add(kernel)
        kernel.closed = partial(self._closed, kernel)
        kernel.died.add_done_callback(lambda _: self._living.pop(instance, None))

    def _closed(self, kernel: GatewayKernel) -> None:
        self._open.discard(kernel)
        if kernel.is_given_up:
            self._left.append(kernel.plan.held)

    def _undo(self, client: GatewayClient, instance: str, kernel: str) -> None:
        """Delete what a start left at the server, in the background: the one who waited has waited long enough."""
        task = asyncio.create_task(self._delete_left(client, instance, kernel), name=f"undo start of {instance}")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    async def _delete_left(self, client: GatewayClient, instance: str, kernel: str) -> None:
        with contextlib.suppress(PxError):
            await client.delete(kernel, UNDO_SECONDS)
            async with self._writing:
                # The instance may have another kernel by now.
                held = await asyncio.to_thread(self._notes.read, instance)
                if held is not None and held.kernel == kernel:
                    await asyncio.to_thread(self._notes.remove, instance)


def _first_word_by(start: Start) -> float | None:
    if start.patience_seconds is None:
        return None
    left = remaining(start.deadline)
    return start.deadline - left + min(start.patience_seconds, left / 2)


def _proposing(body: Mapping[str, object], kernel: str) -> dict[str, object]:
    """Return the POST's body with the id that we want: each kind of server has its own place for it."""
    env = body.get("env")
    named = {**env, "KERNEL_ID": kernel} if isinstance(env, dict) and env else env
    return {**body, "kernel_id": kernel, **({} if named is None else {"env": named})}


def _child(held: Held) -> Child:
    unit = f"{_UNIT}{held.session_id}"
    return Child(held.instance, unit, Identity(0, 0, ""), held.started_at, held.tag, log_position=0)
