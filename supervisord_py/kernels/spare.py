"""One kernel that was started ahead: made, asked, given away, ended. What it does inside is in `inside/spare.py`.

Law: until it is given away it is the keeper's child under a unit of its own, `kernel-spare:…`, and it ends when this
end of its descriptor closes, whoever closes it: a control plane that dies leaves none behind. It is given away in three
steps: order, renaming, go. Whatever fails before the last one leaves the session's key untouched, for a fresh start.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import PxError
from supervisord_py.kernels.inside.spare import stamped
from supervisord_py.kernels.launch_command import LAUNCHER
from supervisord_py.process.keeper_client import marked
from supervisord_py.process.model import ChildSpec, GrantedFd, Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.spare_rules import Recipe
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child

KIND = "kernel-spare"
FD = 3
STORED = "kernel-spare"
"""Name of its descriptor with the keeper, for the moment of the spawn: one is made at a time."""
ANSWER_SECONDS = 1.0
"""A spare that does not take its order within this is given up: a fresh start takes about half of it."""
NEVER_NEWER_SECONDS = 0.1
"""File systems' clocks are a little behind ours."""
LINE_BYTES = 1 << 20


class UnfitError(Exception):
    """A spare cannot be what was ordered; says why."""


class Spare:
    """One process."""

    def __init__(self, placement: KeeperClient, recipe: Recipe) -> None:
        self._placement = placement
        self.recipe = recipe
        self.key = placement.new_key()
        self.pid: int | None = None
        self._unit = unit_of(recipe)
        self._born: dict[str, str] = {}
        self._stamps: dict[str, list[int] | None] = {}
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    # -- coming ----------------------------------------------------------------------------------------------------

    async def warm_up(self) -> None:
        """Start it; returns when it waits for its order.

        Raises:
            PxError, OSError: It cannot be started.
            UnfitError: It ended instead, or what it was made from changed meanwhile.
        """
        begun = time.time()
        await self._spawn()
        told = await self._hear()
        self._stamps = told["made_from"]
        newest = max((each[2] for each in self._stamps.values() if each is not None), default=0)
        if newest >= (begun - NEVER_NEWER_SECONDS) * 1e9:
            raise UnfitError("what it was made from changed meanwhile")

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        with theirs:
            await self._placement.put_fd(STORED, theirs.fileno())
        recipe = self.recipe
        words = [recipe.interpreter, str(LAUNCHER), "--px-spare", str(FD)]
        overlay = [] if recipe.overlay is None else ["--px-overlay", recipe.overlay]
        spec = ChildSpec(
            unit=self._unit,
            argv=(*words, *overlay),
            cwd="/",
            env=recipe.environment(),
            limits=recipe.limits,
            grants=(GrantedFd(FD, STORED),),
            max_rss_bytes=recipe.max_rss_bytes,
            memory_grace_seconds=recipe.memory_grace_seconds,
        )
        self._born = marked(self.key, self._unit, spec.env)
        try:
            self.pid = (await self._placement.spawn(self.key, spec)).identity.pid
        finally:
            await self._placement.drop_fd(STORED)

    async def died(self) -> None:
        """Wait for its end."""
        with suppress(PxError):
            await self._placement.wait(self.key)

    # -- being given away ------------------------------------------------------------------------------------------

    async def become(self, launch: Launch, argv: tuple[str, ...]) -> Child:
        """Make it the kernel of a launch; afterwards it is the placement's child under the launch's key.

        Raises:
            UnfitError, PxError, OSError, TimeoutError: It cannot be; nothing is known of the launch's key.
        """
        unit = f"kernel:{launch.session_id}"
        env = marked(launch.instance, unit, launch.env)
        async with asyncio.timeout(ANSWER_SECONDS):
            if await asyncio.to_thread(stamped, self._stamps) != self._stamps:
                raise UnfitError("what it was made from has changed")
            await self._say({"argv": argv, "cwd": launch.cwd, "env": env, "born": self._born})
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
            raise UnfitError("it was never started")
        self._writer.write(json.dumps(members).encode() + b"\n")
        await self._writer.drain()

    async def _hear(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise UnfitError("it has ended")
        told: dict[str, Any] = json.loads(line)
        return told

    # -- going -----------------------------------------------------------------------------------------------------

    async def end(self, reason: Reason) -> None:
        """Leave nothing of it; one that was given away is not touched."""
        self._close()
        report = await self._placement.stop(self.key, grace_seconds=0.0, reason=reason.value)
        if not report.survivors:
            await self._placement.release(self.key)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def unit_of(recipe: Recipe) -> str:
    """Return the unit of its life before the order: one for each interpreter, so that logs do not pile up."""
    words = f"{recipe.interpreter}\0{recipe.overlay}"
    return f"{KIND}:{hashlib.sha256(words.encode(errors='surrogateescape')).hexdigest()[:8]}"
