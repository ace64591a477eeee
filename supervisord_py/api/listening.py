"""A listener of the API, whose connections are accepted with public means of asyncio only.

When descriptors are out, asyncio's own accept loop tries as often as its backlog is long: a
thousand errors in a row, after each of which it starts again a second later. This one stops at the
first error, pauses, and goes on by itself.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import structlog
from aiohttp import web

# while the control plane restarts, clients wait here; the kernel caps it at net.core.somaxconn
BACKLOG = 1024
ACCEPTED_AT_ONCE = 64  # in one turn of the event loop
PAUSE_SECONDS = 0.5  # after an error of the system's, like too few descriptors
# what an accepted connection has for its first request when we stop
FIRST_REQUEST_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.01
# accept(2): only that connection failed
_OF_ONE_CLIENT = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})
_log = structlog.get_logger(__name__)


class Listener(web.BaseSite):
    """One bound socket that is served by a runner."""

    def __init__(self, runner: web.AppRunner, listening: socket.socket) -> None:
        super().__init__(runner)
        self._app_runner = runner
        self._listening = listening
        self._pause: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return f"socket {self._listening.getsockname()}"

    async def start(self) -> None:
        await super().start()
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._watch()

    async def stop(self) -> None:
        """Accept nothing more. The socket itself is closed; the keeper holds another descriptor of
        it.

        Returns once each accepted connection has begun its first request, or has had a moment for
        it: aiohttp closes connections without a request, and does not wait for those that come
        later.
        """
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listening.fileno())
        self._listening.close()
        if self._connecting:
            await asyncio.wait(self._connecting)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FIRST_REQUEST_GRACE_SECONDS
        while self._has_silent_connection() and loop.time() < deadline:  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(_LOOK_SECONDS)
        await super().stop()

    def _has_silent_connection(self) -> bool:
        server = self._app_runner.server
        connections: list[Any] = [] if server is None else server.connections
        return any(connection.asked == 0 for connection in connections)

    def _watch(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept what waits, so many at once that others get their turn."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OF_ONE_CLIENT:
                    continue
                self._wait(error)
                return
            connection.setblocking(False)
            task = asyncio.create_task(self._serve(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _wait(self, error: OSError) -> None:
        """Stop accepting for a moment: the event loop would call us again at once, and for
        nothing.
        """
        _log.warning("cannot_accept", detail=error.strerror, pause_seconds=PAUSE_SECONDS)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening.fileno())
        self._pause = loop.call_later(PAUSE_SECONDS, self._watch)

    async def _serve(self, connection: socket.socket) -> None:
        server = self._app_runner.server
        if server is None:  # we are closing
            connection.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(server, connection)
        except OSError as error:  # the client is gone already
            connection.close()
            _log.info("connection_lost", detail=str(error))
