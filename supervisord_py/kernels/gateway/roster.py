"""The kernels that one backend has at servers: started, taken over, forgotten; a note for each in a file of its own.

A kernel that a server started for us is written down before anything is asked of it, and deleted when its start does
not come to its end; where the server's answer never came, the id that we proposed is deleted. The note goes after the
kernel is known to be gone; what has a note and no session is deleted at its server by a later sweep. A note holds no
token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import Started
from supervisord_py.kernels.gateway.handle import KernelPlan, open_again, open_new, remaining
from supervisord_py.process.spec import Child, Identity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.client import GatewayClient
    from supervisord_py.kernels.gateway.handle import GatewayKernel

UNDO_SECONDS = 5.0
VERSION = 1
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """One kernel at a server.

    Attributes:
        instance: Key of its life; begins with the daemon's id and a dot.
        session_id: Whose it is: unit `kernel:<session id>`.
        kernel: Its id at the server.
        url: The server's address, without credentials.
        session: Of the websocket: the server replays what it kept only to the same one.
        started_at: Unix seconds.
        tag: Note of the room.
        facts: How the kernel named its process: pid and mark.
    """

    instance: str
    session_id: str
    kernel: str
    url: str
    session: str
    started_at: float
    tag: str = ""
    facts: tuple[str, ...] = ()


class HeldKernels:
    """The notes in one directory. Blocking file I/O, small."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, held: Held) -> None:
        """Write or replace a note."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place(self._path(held.instance), json.dumps({"version": VERSION, **asdict(held)}))

    def read(self, instance: str) -> Held | None:
        """Return a note; None where there is none that makes sense."""
        return _read(self._path(instance))

    def of(self, daemon: str) -> tuple[Held, ...]:
        """Return the notes of one daemon, oldest first."""
        try:
            paths = sorted(self._folder.glob(f"{daemon}.*.json"))
        except OSError:
            return ()
        return tuple(held for path in paths if (held := _read(path)) is not None)

    def remove(self, instance: str) -> None:
        """Remove a note; that of none is removed already."""
        with contextlib.suppress(OSError):
            self._path(instance).unlink(missing_ok=True)

    def _path(self, instance: str) -> Path:
        return self._folder / f"{instance.replace('/', '_')}.json"


def _read(path: Path) -> Held | None:
    try:
        members = json.loads(path.read_text(encoding="utf-8"))
        if members.pop("version") != VERSION:
            return None
        return Held(**{**members, "facts": tuple(members.get("facts", ()))})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def place(path: Path, text: str) -> None:
    """Write a private file that appears whole or not at all. Blocking."""
    draft = path.with_name(f".{secrets.token_hex(6)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class Start:
    """One kernel to be started at a server.

    Attributes:
        body: Of the POST, without the id.
        code: Python to be run silently first.
        spool: The kernel will write the files of its cells.
        wanted_id: Id to propose to the server, "" for any.
    """

    launch: Launch
    body: Mapping[str, object]
    code: str | None
    spool: bool
    deadline: float
    on_spawned: Callable[[Started], Awaitable[None]]
    wanted_id: str = ""


class KernelRoster:
    """Kernels of one daemon at the servers of one backend."""

    def __init__(self, config: KernelsConfig, daemon: str, backend: str) -> None:
        self.config = config
        self._daemon = daemon
        self._notes = HeldKernels(config.gateway.dir / "held" / backend)
        self._living: dict[str, GatewayKernel] = {}
        self._open: list[GatewayKernel] = []
        self._writing = asyncio.Lock()
        self._undoing: set[asyncio.Task[None]] = set()

    # -- up ----------------------------------------------------------------------------------------------------------

    async def start(self, client: GatewayClient, start: Start, phases: dict[str, float]) -> GatewayKernel:
        """Have a kernel started and return it when it answers.

        Raises:
            PxError: It did not come up; nothing of it is left, as far as the server can be reached.
        """
        wanted = start.wanted_id or str(uuid.uuid4())
        kernel_id, began = wanted, time.monotonic()
        try:
            kernel_id = await client.create(_proposing(start.body, wanted), remaining(start.deadline))
            phases["post"] = time.monotonic() - began
            held = Held(
                instance=start.launch.instance,
                session_id=start.launch.session_id,
                kernel=kernel_id,
                url=client.place.shown,
                session=uuid.uuid4().hex,
                started_at=time.time(),
                tag=start.launch.tag,
            )
            await self._write(held)
            await start.on_spawned(Started(None, phases))
            kernel = await open_new(self._plan(client, held, start.spool), start.code, start.deadline, phases)
        except BaseException:
            self._undo(client, start.launch.instance, kernel_id)
            raise
        await self._write(kernel.plan.held)
        self._take(kernel)
        return kernel

    async def attach(self, client: GatewayClient, held: Held, *, spool: bool) -> GatewayKernel | None:
        """Take over a kernel; None when it is gone or its state is, and then it is deleted."""
        kernel = await open_again(self._plan(client, held, spool))
        if kernel is None:
            self._undo(client, held.instance, held.kernel)
            return None
        self._take(kernel)
        return kernel

    # -- what is held ------------------------------------------------------------------------------------------------

    async def find(self, instance: str) -> Held | None:
        """Return the note of a kernel."""
        return await asyncio.to_thread(self._notes.read, instance)

    async def held(self) -> tuple[Child, ...]:
        """Return what this daemon's control planes have started and nobody has seen the end of, as the keeper would."""
        return tuple(
            Child(each.instance, f"kernel:{each.session_id}", Identity(0, 0, ""), each.started_at, each.tag, 0)
            for each in await self.forgotten()
        )

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
        await self.forget(held)
        return True

    async def forget(self, held: Held) -> None:
        """Remove the note of a kernel that is gone."""
        await asyncio.to_thread(self._notes.remove, held.instance)

    async def close(self) -> None:
        """Let go of all connections; the kernels go on living."""
        for kernel in self._open:
            await kernel.close()
        self._living.clear()
        if self._undoing:
            await asyncio.wait(set(self._undoing))

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _plan(self, client: GatewayClient, held: Held, spool: bool) -> KernelPlan:
        return KernelPlan(client, held, self._notes, spool, self.config.ladder.nudge_seconds, self.config.trace)

    async def _write(self, held: Held) -> None:
        """Write a note; a tag that the room gave it meanwhile stays."""
        async with self._writing:
            present = await asyncio.to_thread(self._notes.read, held.instance)
            tag = present.tag if present is not None else held.tag
            await asyncio.to_thread(self._notes.write, replace(held, tag=tag))

    def _take(self, kernel: GatewayKernel) -> None:
        instance = kernel.plan.held.instance
        self._living[instance] = kernel
        self._open = [*(each for each in self._open if not each.is_closed), kernel]
        kernel.died.add_done_callback(lambda _: self._living.pop(instance, None))

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
                    await self.forget(held)


def _proposing(body: Mapping[str, object], kernel: str) -> dict[str, object]:
    """Return the POST's body with the id that we want: each kind of server has its own place for it."""
    env = body.get("env")
    named = {**env, "KERNEL_ID": kernel} if isinstance(env, dict) and env else env
    return {**body, "kernel_id": kernel, **({} if named is None else {"env": named})}
