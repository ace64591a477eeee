"""Writes to journald in its native protocol: one datagram an entry, own fields kept (JOURNAL_NATIVE_PROTOCOL).

Never fails and never blocks: when journald is away, full, or refuses the size, the entry is dropped and counted, and
the next entry that gets through says how many were lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

JOURNAL_SOCKET = "/run/systemd/journal/socket"
MAX_VALUE = 32 * 1024
"""Bytes of one field; a longer value is cut, so that an entry stays far below the socket's buffer (EMSGSIZE)."""

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def stderr_is_journal(stream: str | None, fd: int = 2) -> bool:
    """Say whether `fd` is the connection that JOURNAL_STREAM (`device:inode`) names, as systemd.exec(5) wants it."""
    if not stream:
        return False
    try:
        seen = os.fstat(fd)
    except OSError:
        return False
    return stream == f"{seen.st_dev}:{seen.st_ino}"


def encode_entry(fields: Mapping[str, str]) -> bytes:
    """Serialise one entry: name, newline, the length as 64 bits little-endian, value, newline; so for each. Pure."""
    parts = []
    for name, text in fields.items():
        value = text.encode("utf-8", "replace")[:MAX_VALUE]
        parts += [name.encode("ascii"), b"\n", struct.pack("<Q", len(value)), value, b"\n"]
    return b"".join(parts)


class Journal:
    """A connection to journald that survives journald's own restarts."""

    def __init__(self, path: str = JOURNAL_SOCKET) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self.dropped = 0

    def write(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; returns False when it was dropped."""
        told = dict(fields) | ({"PX_DROPPED_ENTRIES": str(self.dropped)} if self.dropped else {})
        if not self._send(encode_entry(told)):
            self.dropped += 1
            return False
        self.dropped = 0
        return True

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, entry: bytes) -> bool:
        for _ in range(2):
            try:
                self._connected().send(entry)
            except OSError as error:
                if error.errno in {errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS}:
                    return False
                # journald was restarted or is away: its old socket is dead for ever, so connect once more.
                self.close()
            else:
                return True
        return False

    def _connected(self) -> socket.socket:
        if self._socket is None:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            fresh.settimeout(0.0)
            with contextlib.suppress(OSError):
                fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
            try:
                fresh.connect(self._path)
            except OSError:
                fresh.close()
                raise
            self._socket = fresh
        return self._socket
