"""What a starting tool is seen to be ready by (`driver.until_ready`).

Its notification socket, and who listens where.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MESSAGE_BYTES = 128 * 1024
_MODULE = re.compile(r"[\w.]+")
_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104  # recognised, not bound


class NotifySocket:
    """The receiving end of one instance's NOTIFY_SOCKET, 0600 in a 0700 directory: whoever can reach it is believed.

    It is read for as long as the instance lives: a full queue would block its senders. The next control plane binds the
    path anew; what was said meanwhile is lost, and `/healthz` tells.
    """

    def __init__(self, run_dir: Path, key: str) -> None:
        """Bind it; raises OSError where the path cannot be bound."""
        self.path = notify_path(run_dir, key)
        self.is_ready = asyncio.Event()
        self.on_modules: Callable[[list[str]], None] = lambda _names: None  # told what the tool has imported
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self.path.unlink(missing_ok=True)
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError:
            self._socket.close()
            raise
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
    """Return where the notification socket of an instance lies; short, because sun_path holds 104 bytes at least."""
    return run_dir / "n" / key.rpartition(".")[2]


class Listening(NamedTuple):
    """A listening TCP socket of some process."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def listening_of(leader: int) -> tuple[Listening, ...]:
    """Return where a tree of processes listens, without duplicates, leader first. Costs milliseconds."""
    import psutil  # a megabyte that an idle daemon does not need

    found: dict[Listening, None] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(leader)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                for each in process.net_connections(kind="tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        found[Listening(*each.laddr[:2])] = None
    return tuple(found)


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(each.port == port and each.address in _LOCAL for each in listening_of(leader))
