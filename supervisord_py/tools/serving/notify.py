"""A private NOTIFY_SOCKET for each instance: the tool may say READY=1 itself (sd_notify(3)).

Whoever can reach it is believed: it is 0600 in a 0700 directory, and each instance has its own. The keeper has a
duplicate, so that a word said while the control plane is away waits for the next one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MESSAGE_BYTES = 4096


def stored_name(key: str) -> str:
    """Return the name under which the keeper holds the notification socket of an instance."""
    return f"notify:{key}"


def socket_path(run_dir: Path, key: str) -> Path:
    """Return where the notification socket of an instance lies; short, because sun_path holds 104 bytes at least."""
    return run_dir / "n" / key.rpartition(".")[2]


class NotifySocket:
    """The receiving end. `listen` reads for as long as the instance lives: a full queue would block its senders."""

    def __init__(self, receiving: socket.socket, path: Path) -> None:
        receiving.setblocking(False)
        self.path = path
        self.status = ""
        self.is_ready = asyncio.Event()
        self._socket = receiving
        self._on_extend: Callable[[float], None] | None = None

    @classmethod
    def create(cls, run_dir: Path, key: str) -> NotifySocket:
        """Bind a new one; 0600 from the first instant, whatever the umask of the moment lets through its directory.

        Raises:
            OSError: the path cannot be bound.
        """
        path = socket_path(run_dir, key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            path.unlink(missing_ok=True)
            receiving.bind(str(path))
            path.chmod(0o600)
            return cls(receiving, path)
        except OSError:
            receiving.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, to deposit a duplicate of it."""
        return self._socket.fileno()

    def listen(self, on_extend: Callable[[float], None] | None = None) -> None:
        """Begin to take words. `on_extend` gets seconds of EXTEND_TIMEOUT_USEC."""
        self._on_extend = on_extend
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def _receive(self) -> None:
        for _ in range(64):  # bounded: a chatterbox must not keep the loop from everybody else
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except OSError:
                return
            self._take(message)

    def _take(self, message: bytes) -> None:
        for line in message.decode(errors="replace").splitlines():
            name, _, value = line.partition("=")
            if name == "READY" and value == "1":
                self.is_ready.set()
            elif name == "STATUS":
                self.status = value
            elif name == "EXTEND_TIMEOUT_USEC" and value.isdigit() and self._on_extend is not None:
                self._on_extend(int(value) / 1e6)

    def close(self) -> None:
        """Stop listening and close our end; the file stays for a later control plane."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()

    def remove(self) -> None:
        """Close, and take the file away: the instance is gone."""
        self.close()
        self.path.unlink(missing_ok=True)
