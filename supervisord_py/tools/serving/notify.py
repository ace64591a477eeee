"""A private NOTIFY_SOCKET for each instance: the tool may say READY=1 itself (sd_notify(3)).

Law: only a word from the instance's own tree counts. The sender is known by its credentials (unix(7), SO_PASSCRED);
a sender that has already gone cannot be placed and is believed, because the socket is 0600 in a 0700 directory.
The keeper has a duplicate, so that a word said while the control plane is away waits for the next one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MESSAGE_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")
_PASSCRED: int | None = getattr(socket, "SO_PASSCRED", None)
_SCM_CREDENTIALS: int | None = getattr(socket, "SCM_CREDENTIALS", None)


def stored_name(key: str) -> str:
    """Return the name under which the keeper holds the notification socket of an instance."""
    return f"notify:{key}"


def socket_path(run_dir: Path, key: str) -> Path:
    """Return where the notification socket of an instance lies; short, because sun_path holds 104 bytes at least."""
    return run_dir / "n" / key.rpartition(".")[2]


def _is_of_tree(pid: int, leader: int, key: str) -> bool:
    if pid == leader:
        return True
    try:
        if os.getsid(pid) == leader:
            return True
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return f"PX_INSTANCE={key}".encode() in environment.read().split(b"\0")
    except OSError:
        return not os.path.exists(f"/proc/{pid}")


class NotifySocket:
    """The receiving end. `listen` reads for as long as the instance lives: a full queue would block its senders."""

    def __init__(self, receiving: socket.socket, path: Path, key: str) -> None:
        receiving.setblocking(False)
        if _PASSCRED is not None:
            receiving.setsockopt(socket.SOL_SOCKET, _PASSCRED, 1)
        self.path = path
        self.status = ""
        self.is_ready = asyncio.Event()
        self._socket = receiving
        self._key = key
        self._leader: int | None = None
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
            return cls(receiving, path, key)
        except OSError:
            receiving.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, to deposit a duplicate of it."""
        return self._socket.fileno()

    def listen(self, leader: int, on_extend: Callable[[float], None] | None = None) -> None:
        """Begin to take words from the tree of `leader`. `on_extend` gets seconds of EXTEND_TIMEOUT_USEC."""
        self._leader = leader
        self._on_extend = on_extend
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def _receive(self) -> None:
        for _ in range(64):  # bounded: a chatterbox must not keep the loop from everybody else
            try:
                message, ancillary, _, _ = self._socket.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return
            if self._is_believed(ancillary):
                self._take(message)

    def _is_believed(self, ancillary: list[tuple[int, int, bytes]]) -> bool:
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS and self._leader is not None:
                pid = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
                return _is_of_tree(pid, self._leader, self._key)
        return _PASSCRED is None

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
