"""Kernels that are started ahead, so that the first cell of a new session need not wait for Python and its imports.

Nobody waits for a spare, and no trouble with one reaches a call: it is logged, and the start goes on afresh. Until it
is given away a spare is the keeper's child under a unit of its own, `kernel-spare:…`, and it ends when this end of its
descriptor closes, whoever closes it. It is given away in three steps: order, renaming, go; whatever fails before the
last one leaves the session's key untouched. What it does inside is in `inside/spare.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.backend import SpareView
from supervisord_py.kernels.inside.spare import stamped
from supervisord_py.kernels.kernelspecs import LAUNCHER
from supervisord_py.process.host import check_room
from supervisord_py.process.keeper_client import marked
from supervisord_py.process.model import ChildSpec, GrantedFd, Reason

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ResourceLimit

FD = 3
STORED = "kernel-spare"  # name of its descriptor with the keeper, for the moment of the spawn: one is made at a time
ANSWER_SECONDS = 1.0  # for taking an order: a fresh start takes about half of it
SETTLE_SECONDS = 0.5  # from a start to the making of the next spare: its first cell has run by then, mostly
LINE_BYTES = 1 << 20
LATE = frozenset(("PATH", "PWD", "OLDPWD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "IPYKERNEL_CELL_NAME"))
LATE_PREFIXES = ("PX_", "JPY_")
"""Variables that the order brings: nothing that acts while Python starts. All others a spare is started with."""
_log = structlog.get_logger(__name__)


class Recipe(NamedTuple):
    """What a spare is started from. Equal ones do for each other: what differs otherwise, the order brings."""

    interpreter: str
    overlay: str | None
    limits: tuple[ResourceLimit, ...]
    max_rss_bytes: int | None
    memory_grace_seconds: float
    env: tuple[tuple[str, str], ...]  # all but what the order brings, sorted


def _is_late(name: str) -> bool:
    return name in LATE or name.startswith(LATE_PREFIXES)


def recipe_of(launch: Launch) -> Recipe | None:
    """Return what a spare for such launches is started from; None where there can be none."""
    if launch.interpreter is None or not launch.interpreter.startswith("/"):
        return None
    if not all(entry.startswith("/") for entry in (launch.env.get("PYTHONPATH") or "/").split(":")):
        return None  # Python makes them absolute as it starts, in the folder that it is started in
    env = tuple(sorted(each for each in launch.env.items() if not _is_late(each[0])))
    memory = (launch.max_rss_bytes, launch.memory_grace_seconds)
    return Recipe(launch.interpreter, launch.overlay, launch.limits, *memory, env)


class UnfitError(Exception):
    """A spare cannot be what was ordered; says why."""


_TROUBLE = (UnfitError, PxError, OSError, TimeoutError, ValueError, KeyError, TypeError)
"""What may go wrong with another process that may say anything."""


class Spare:
    """One process. `path`: PATH until the order: an interpreter may be a script that looks for another one."""

    def __init__(self, placement: KeeperClient, recipe: Recipe, path: str) -> None:
        self.recipe = recipe
        self.key = placement.new_key()
        self.pid: int | None = None
        self.is_ready = False
        self.life: asyncio.Task[None] | None = None
        digest = hashlib.sha256(f"{recipe.interpreter}\0{recipe.overlay}".encode(errors="surrogateescape"))
        self.unit = f"kernel-spare:{digest.hexdigest()[:8]}"  # one for each interpreter: logs do not pile up
        self._placement = placement
        self._env = dict(recipe.env) | ({"PATH": path} if path else {})
        self._stamps: dict[str, list[int] | None] = {}
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def warm_up(self) -> None:
        """Start it; returns when it waits for its order. Raises PxError, OSError, UnfitError."""
        recipe = self.recipe
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
            except BaseException:
                ours.close()
                raise
            await self._placement.put_fd(STORED, theirs.fileno())
        overlay = [] if recipe.overlay is None else ["--px-overlay", recipe.overlay]
        spec = ChildSpec(
            unit=self.unit,
            argv=(recipe.interpreter, str(LAUNCHER), "--px-spare", str(FD), *overlay),
            cwd="/",
            env=self._env,
            limits=recipe.limits,
            grants=(GrantedFd(FD, STORED),),
            max_rss_bytes=recipe.max_rss_bytes,
            memory_grace_seconds=recipe.memory_grace_seconds,
        )
        try:
            self.pid = (await self._placement.spawn(self.key, spec)).identity.pid
        finally:
            await self._placement.drop_fd(STORED)
        self._stamps = (await self._hear())["made_from"]
        self.is_ready = True

    async def become(self, launch: Launch, argv: tuple[str, ...]) -> Child:
        """Make it the kernel of a launch: the placement's child under the launch's key.

        UnfitError, PxError, OSError, TimeoutError: it cannot be, and nothing is known of that key.
        """
        unit = f"kernel:{launch.session_id}"
        env = marked(launch.instance, unit, {name: it for name, it in launch.env.items() if _is_late(name)})
        async with asyncio.timeout(ANSWER_SECONDS):
            if await asyncio.to_thread(stamped, self._stamps) != self._stamps:
                raise UnfitError("what it was made from has changed")
            await self._say({"argv": argv, "cwd": launch.cwd, "env": env})
            answer = await self._hear()
        if not answer["fits"]:
            raise UnfitError(str(answer["why"]))
        child = await self._placement.rename(self.key, launch.instance, unit=unit, tag=launch.tag)
        with suppress(OSError):  # one that died in this very moment: whoever waits for it hears of that
            await self._say({"go": True})
        self._close()
        return child

    async def _say(self, members: dict[str, Any]) -> None:
        if self._writer is None:
            raise UnfitError("it was let go of")
        self._writer.write(json.dumps(members).encode() + b"\n")
        await self._writer.drain()

    async def _hear(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise UnfitError("it has ended")
        told: dict[str, Any] = json.loads(line)
        return told

    async def end(self, reason: Reason) -> None:
        """Leave nothing of it; one that was given away is not touched."""
        if self.life is not None:
            await asyncio.wait([self.life])  # it may be spawning
        self._close()
        try:
            report = await self._placement.stop(self.key, grace_seconds=0.0, reason=reason.value)
            if not report.survivors:
                await self._placement.release(self.key)
        except PxError as error:
            _log.warning("kernel_spare_not_ended", instance=self.key, detail=error.detail)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class SparePool:
    """The spares of one control plane; one that was taken is made anew with the next start. End it with `close`."""

    def __init__(self, placement: KeeperClient, config: KernelsConfig) -> None:
        self._placement = placement
        self._config = config
        self._spares: dict[Recipe, Spare] = {}  # the most recently used last
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def views(self) -> tuple[SpareView, ...]:
        """Return the spares there are."""
        return tuple(SpareView(it.recipe.interpreter, it.pid, it.is_ready) for it in self._spares.values())

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: spares beyond them are ended."""
        self._config = config
        self._trim()

    def want(self, launch: Launch) -> None:
        """A kernel was started, or will be, from such a launch: have a spare for the next one."""
        recipe = recipe_of(launch)
        if recipe is None or not self._config.spares:
            return
        spare = self._spares.pop(recipe, None)
        if spare is None:
            spare = Spare(self._placement, recipe, launch.env.get("PATH", ""))
            spare.life = self._run(self._live(spare))
        self._spares[recipe] = spare
        self._trim()

    def _trim(self, most: int | None = None) -> None:
        while len(self._spares) > (self._config.spares if most is None else most):
            spare = self._spares.pop(next(iter(self._spares)))
            if spare.life is not None:
                spare.life.cancel()
            self._run(spare.end(Reason.STOPPED))

    async def take(self, launch: Launch, argv: tuple[str, ...]) -> Child | None:
        """Return the child that a spare became under the launch's key; None where a fresh start is needed."""
        recipe = recipe_of(launch)
        if recipe is None or recipe not in self._spares or not self._spares[recipe].is_ready:
            return None
        spare, unit = self._spares.pop(recipe), f"kernel:{launch.session_id}"
        if spare.life is not None:
            spare.life.cancel()
        try:
            child = await spare.become(launch, argv)
        except BaseException as trouble:
            self._run(spare.end(Reason.REPLACED))
            if not isinstance(trouble, _TROUBLE) or isinstance(trouble, KeeperLostError):
                raise
            _log.warning("kernel_spare_not_taken", unit=unit, instance=spare.key, why=_words(trouble))
            return None
        _log.info("kernel_spare_taken", unit=unit, instance=launch.instance, spare=spare.key)
        return child

    async def close(self) -> None:
        """End every spare, and what is under way."""
        self._trim(0)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _live(self, spare: Spare) -> None:
        """Have one spare until it ends or nobody took it for long; cancelled when it is given away or given up."""
        where = {"interpreter": spare.recipe.interpreter, "instance": spare.key}
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            async with self._one_at_a_time, asyncio.timeout(self._config.start_seconds):
                check_room(spare.unit)
                await spare.warm_up()
            _log.info("kernel_spare_ready", **where)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.spare_idle_seconds):
                    await self._placement.wait(spare.key)
                    _log.warning("kernel_spare_died", **where)
        except _TROUBLE as trouble:
            _log.warning("kernel_spare_not_made", why=_words(trouble), **where)
        if self._spares.get(spare.recipe) is spare:
            del self._spares[spare.recipe]
            self._run(spare.end(Reason.STOPPED))

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kernel_spares_broke", exc_info=error)


def _words(trouble: BaseException) -> str:
    return str(trouble) or type(trouble).__name__
