"""One listening socket for each known tool, for as long as the tool is known (DESIGN D8).

Law: the socket outlives every instance and the control plane too (the keeper has a duplicate), so the port is stable,
nobody else can take it, and requests wait in its backlog instead of being refused. Only an instance accepts from it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from supervisord_py.process.placement import Placement


@dataclass(frozen=True, slots=True)
class Listener:
    """A tool's listening socket on 127.0.0.1, and the name under which the keeper has it."""

    tool: str
    port: int
    stored_name: str
    socket: socket.socket


def _open(backlog: int) -> socket.socket:
    """Return a listening socket on a free port, so bound that it keeps that port even through a shutdown(2).

    The kernel takes a port that it chose itself back at a shutdown, one that was asked for by number it does not
    (SOCK_BINDPORT_LOCK). So the number that it chose for a first socket is asked for by a second one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        chosen.bind(("127.0.0.1", 0))
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit it (Linux); a server that writes head and body apart stalls for 40 ms otherwise.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.bind(("127.0.0.1", chosen.getsockname()[1] if sys.platform == "linux" else 0))
            listening.listen(backlog)
        except OSError:
            listening.close()
            raise
    return listening


def _no_socket(tool: str, error: OSError) -> StartFailedError:
    return StartFailedError(
        f"No listening socket could be made for tool:{tool}: {error.strerror}.",
        hint="Raise the limit on open files (`ulimit -n`) and see `pxctl doctor`.",
        unit=f"tool:{tool}",
        reason=Reason.SPAWN_FAILED.value,
        stage="listen",
        errno=error.errno,
    )


class Listeners:
    """The listening sockets of all tools that were ever started or are adopted."""

    def __init__(self, placement: Placement, backlog: int, *, prefix: str = "listen:tool:") -> None:
        self._placement = placement
        self._backlog = backlog
        self._prefix = prefix
        self._held: dict[str, Listener] = {}

    def stored_name(self, tool: str) -> str:
        """Return the name under which the keeper holds the listening socket of a tool."""
        return f"{self._prefix}{tool}"

    def port_of(self, tool: str) -> int | None:
        """Return the port of a tool that has one."""
        listener = self._held.get(tool)
        return listener.port if listener else None

    def tools(self) -> tuple[str, ...]:
        """Return the names of the tools that have one."""
        return tuple(self._held)

    async def get(self, tool: str) -> Listener:
        """Return the tool's listening socket: the one we have, else the keeper's, else a new one.

        Raises:
            StartFailedError: no socket is to be had (stage "listen", errno).
            KeeperLostError: the keeper is gone.
        """
        if tool in self._held:
            return self._held[tool]
        listening = await self._take_back(tool)
        if listening is None:
            try:
                listening = _open(self._backlog)
            except OSError as error:
                raise _no_socket(tool, error) from error
            await self._deposit(tool, listening)
        if tool in self._held:  # somebody else was faster while the keeper answered
            listening.close()
        else:
            self._held[tool] = Listener(tool, listening.getsockname()[1], self.stored_name(tool), listening)
        return self._held[tool]

    async def _deposit(self, tool: str, listening: socket.socket) -> None:
        try:
            await self._placement.put_fd(self.stored_name(tool), listening.fileno())
        except BaseException:
            listening.close()
            raise

    async def _take_back(self, tool: str) -> socket.socket | None:
        fd = await self._placement.take_fd(self.stored_name(tool))
        if fd is None:
            return None
        os.set_inheritable(fd, False)
        listening = socket.socket(fileno=fd)
        if listening.family == socket.AF_INET and listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return listening
        listening.close()
        return None

    def listen_again(self, tool: str) -> None:
        """Undo what an instance did to the shared socket: a smaller backlog, or a shutdown(2) of it."""
        listener = self._held.get(tool)
        if listener is not None:
            listener.socket.listen(self._backlog)

    def refuse_waiting(self, tool: str) -> None:
        """Refuse what waits in the backlog, after a start that failed: the kernel resets it at a shutdown(2)."""
        listener = self._held.get(tool)
        if listener is not None:
            with contextlib.suppress(OSError):  # not on macOS: there they wait for the next start
                listener.socket.shutdown(socket.SHUT_RDWR)
            listener.socket.listen(self._backlog)

    async def drop(self, tool: str) -> None:
        """Forget the socket: the tool has disappeared."""
        listener = self._held.pop(tool, None)
        if listener is not None:
            listener.socket.close()
        await self._placement.drop_fd(self.stored_name(tool))

    def close(self) -> None:
        """Close our duplicates; the keeper's stay."""
        for listener in self._held.values():
            listener.socket.close()
        self._held.clear()
