"""Asks a server now and then whether it still has a kernel, while the kernel's websocket says nothing.

Law: only a clear answer counts. A server that does not answer is the websocket's affair; one that answers 404 or
`dead` has lost the kernel; one that twice calls it idle and is silent, while a cell whose connection broke waits for
its reply, has lost that. Only who is read can be silent: the reply may lie behind a message that we still deal with.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError

if TYPE_CHECKING:
    from supervisord_py.kernels.gateway.client import GatewayClient
    from supervisord_py.kernels.gateway.conversation import Conversation

QUIET_SECONDS = 5.0
"""Silence after which the server is asked, while a cell runs."""
IDLE_LOOKS = 6
"""While none runs, only every so many times."""


class Pulse:
    """The watch over one kernel."""

    def __init__(self, client: GatewayClient, kernel: str, talk: Conversation, quiet: float = QUIET_SECONDS) -> None:
        self._client = client
        self._kernel = kernel
        self._talk = talk
        self._quiet = quiet
        self._idle = 0
        self._now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._beat(), name=f"pulse of kernel {self._kernel}")

    def look(self) -> None:
        """Ask at once: the connection was away."""
        self._idle = 0
        self._now.set()

    async def stop(self) -> None:
        """End."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _beat(self) -> None:
        skipped = 0
        while True:
            asked = await self._pause()
            skipped += 1
            quiet = time.monotonic() - self._talk.heard_at >= self._quiet
            if asked or (quiet and (self._talk.is_waiting or skipped >= IDLE_LOOKS)):
                skipped = 0
                if not await self._ask():
                    return

    async def _ask(self) -> bool:
        """Ask the server; False when it has lost the kernel."""
        asked_at = time.monotonic()
        try:
            model = await self._client.model(self._kernel)
        except PxError:
            return True
        state = None if model is None else model.get("execution_state")
        if model is None or state == "dead":
            self._talk.gone("its server does not know it any more" if model is None else "its server calls it dead")
            return False
        is_silent = not self._talk.is_deaf and self._talk.heard_at < asked_at
        self._idle = self._idle + 1 if state == "idle" and is_silent else 0
        if self._idle > 1:
            self._talk.unheard()
        return True

    async def _pause(self) -> bool:
        """Wait for the next look; True when it was asked for."""
        try:
            async with asyncio.timeout(self._quiet):
                await self._now.wait()
        except TimeoutError:
            return False
        self._now.clear()
        return True
