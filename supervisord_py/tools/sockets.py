"""The sockets of tools: where they listen, where they say that they are ready, and who listens where.

A tool that was ever started or is adopted has one listening socket on 127.0.0.1. It outlives every instance and the
control plane too (the keeper has a duplicate), so the port is stable, nobody else can take it, and requests wait in its
backlog instead of being refused. Only an instance accepts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from supervisord_py.process.keeper_client import KeeperClient

LISTEN_BACKLOG = 128
_MESSAGE_BYTES = 128 * 1024
_MODULE = re.compile(r"[\w.]+")
_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104  # recognised, not bound


class Listeners:
    """The listening sockets, by tool; the keeper has them under `prefix` + tool."""

    def __init__(self, placement: KeeperClient, prefix: str) -> None:
        self.prefix = prefix
        self._placement = placement
        self._held: dict[str, socket.socket] = {}

    def port_of(self, tool: str) -> int | None:
        return self._held[tool].getsockname()[1] if tool in self._held else None

    def tools(self) -> tuple[str, ...]:
        return tuple(self._held)

    async def get(self, tool: str) -> int:
        """Return the tool's port: of the socket we have, else the keeper's, else a new one.

        Raises OSError: there is no socket; KeeperLostError: the keeper is gone.
        """
        await self.recall(tool)
        if tool not in self._held:
            self._held[tool] = listening = _listening_socket()  # now: who asks while the keeper answers gets the same
            try:
                await self._placement.ask("put_fd", fds=(listening.fileno(),), name=self.prefix + tool)
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
            self._held[tool].listen(LISTEN_BACKLOG)

    async def drop(self, tool: str) -> None:
        """Forget the socket: the tool has disappeared."""
        if tool in self._held:
            self.unwatch(tool)
            self._held.pop(tool).close()
        await self._placement.ask("drop_fd", name=self.prefix + tool)

    def close(self) -> None:
        """Close our duplicates; the keeper's stay."""
        for tool in self._held:
            self.unwatch(tool)
            self._held[tool].close()
        self._held.clear()


def _listening_socket() -> socket.socket:
    """Return a listening socket on a free port, so bound that it keeps that port even through a shutdown(2).

    The kernel takes a port that it chose itself back at a shutdown, one that was asked for by number it does not
    (SOCK_BINDPORT_LOCK). So the number that it chose for a first socket is asked for by a second one.
    """
    with socket.socket() as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1] if sys.platform == "linux" else 0
        listening = socket.create_server(("127.0.0.1", port), backlog=LISTEN_BACKLOG)
    # Accepted sockets inherit it (Linux); a server that writes head and body apart stalls for 40 ms otherwise.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def free_port() -> int:
    """Return a port on 127.0.0.1 that is free at this moment. Raises OSError: there is no socket."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class NotifySocket:
    """The receiving end of one instance's NOTIFY_SOCKET, 0600 in a 0700 directory: whoever can reach it is believed.

    It is read for as long as the instance lives: a full queue would block its senders. The next control plane binds the
    path anew; what was said meanwhile is lost, and `/healthz` tells. Raises OSError where it cannot be bound.
    """

    def __init__(self, run_dir: Path, key: str) -> None:
        self.path = notify_path(run_dir, key)
        self.is_ready = asyncio.Event()
        self.on_modules: Callable[[list[str]], None] = lambda _names: None  # told what the tool has imported
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def _receive(self) -> None:
        for _ in range(64):  # bounded: a chatterbox must not keep the loop from everybody else
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except OSError:
                return
            for line in message.decode(errors="replace").splitlines():
                name, _, value = line.partition("=")
                if name == "READY" and value == "1":
                    self.is_ready.set()
                elif name == "X_PX_MODULES":
                    self.on_modules([each for each in value.split(",") if _MODULE.fullmatch(each)])

    def close(self) -> None:
        """Stop listening and close our end; the file stays for a later control plane."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()


def notify_path(run_dir: Path, key: str) -> Path:
    return run_dir / "n" / key.rpartition(".")[2]  # short: sun_path holds 104 bytes at least


def listening_of(leader: int) -> list[tuple[str, int]]:
    """Return where a tree of processes listens, address and port; leader first. Costs milliseconds."""
    import psutil  # a megabyte that an idle daemon does not need

    found: dict[tuple[str, int], None] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(leader)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                for each in process.net_connections(kind="tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        found[each.laddr[:2]] = None
    return list(found)


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(number == port and address in _LOCAL for address, number in listening_of(leader))
