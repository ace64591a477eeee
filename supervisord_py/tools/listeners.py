"""One listening socket on 127.0.0.1 for each tool that was ever started or is adopted.

The socket outlives every instance and the control plane too (the keeper has a duplicate), so the port is stable, nobody
else can take it, and requests wait in its backlog instead of being refused. Only an instance accepts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.process.keeper_client import KeeperClient


class Listeners:
    """The sockets, by tool; the keeper has them under `prefix` + tool."""

    def __init__(self, placement: KeeperClient, backlog: int, prefix: str) -> None:
        self.prefix = prefix
        self._placement = placement
        self._backlog = backlog
        self._held: dict[str, socket.socket] = {}

    def port_of(self, tool: str) -> int | None:
        return self._held[tool].getsockname()[1] if tool in self._held else None

    def tools(self) -> tuple[str, ...]:
        return tuple(self._held)

    async def get(self, tool: str) -> int:
        """Return the tool's port: of the socket we have, else the keeper's, else a new one.

        Raises StartFailedError: no socket is to be had (stage "listen", errno); KeeperLostError: the keeper is
        gone.
        """
        await self.recall(tool)
        if tool not in self._held:
            try:
                listening = _listening_socket(self._backlog)
            except OSError as error:
                raise no_socket(f"tool:{tool}", error, "listen") from error
            self._held[tool] = listening  # before the keeper answers: who asks meanwhile gets the same
            try:
                await self._placement.put_fd(self.prefix + tool, listening.fileno())
            except BaseException:
                self._held.pop(tool).close()
                raise
        return int(self._held[tool].getsockname()[1])

    async def recall(self, tool: str) -> None:
        """Take the tool's socket back if the keeper has one."""
        fd = None if tool in self._held else await self._placement.take_fd(self.prefix + tool)
        if fd is not None:
            os.set_inheritable(fd, False)
            listening = socket.socket(fileno=fd)
            if self._held.setdefault(tool, listening) is not listening:
                listening.close()  # or somebody else was faster while the keeper answered

    def watch(self, tool: str, on_connection: Callable[[], None]) -> None:
        """Call back when somebody connects while no instance is there to accept."""
        if tool in self._held:
            asyncio.get_running_loop().add_reader(self._held[tool].fileno(), on_connection)

    def unwatch(self, tool: str) -> None:
        if tool in self._held:
            asyncio.get_running_loop().remove_reader(self._held[tool].fileno())

    def listen_again(self, tool: str, *, refuse_waiting: bool) -> None:
        """Undo what an instance did to the shared socket: a smaller backlog, or a shutdown(2) of it.

        `refuse_waiting`: what waits in the backlog is refused first: the kernel resets it at a shutdown(2). (Not on
        macOS: there it waits for the next start.)
        """
        if tool in self._held:
            if refuse_waiting:
                with contextlib.suppress(OSError):
                    self._held[tool].shutdown(socket.SHUT_RDWR)
            self._held[tool].listen(self._backlog)

    async def drop(self, tool: str) -> None:
        """Forget the socket: the tool has disappeared."""
        if tool in self._held:
            self.unwatch(tool)
            self._held.pop(tool).close()
        await self._placement.drop_fd(self.prefix + tool)

    def close(self) -> None:
        """Close our duplicates; the keeper's stay."""
        for tool in self._held:
            self.unwatch(tool)
            self._held[tool].close()
        self._held.clear()


def _listening_socket(backlog: int) -> socket.socket:
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


def free_port(unit: str) -> int:
    """Return a port on 127.0.0.1 that is free at this moment; raises StartFailedError: there is no socket."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise no_socket(unit, error, "listen") from error


def no_socket(unit: str, error: OSError, stage: str) -> StartFailedError:
    """Return the error of a start for which there is no socket; `stage`: listen or notify."""
    return StartFailedError(
        f"No socket could be made for {unit} to {stage} on: {error.strerror}.",
        hint="Raise the limit on open files (`ulimit -n`) and see `pxctl doctor`.",
        unit=unit,
        reason=Reason.SPAWN_FAILED.value,
        stage=stage,
        errno=error.errno,
    )
