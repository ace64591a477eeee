"""The descriptors that the keeper stores by name for the control plane, some of them out of sight.

`fuser -k PORT/tcp` and `lsof -ti :PORT | xargs kill` end every process that has a socket of that
port in its /proc/PID/fd. A tool that frees "its" port before it binds it must not end the daemon
so. On Linux a listening socket is therefore kept *in flight*: it was sent into one end of a pair of
Unix sockets and stays queued there (unix(7), SCM_RIGHTS). A receive with MSG_PEEK gives a new
descriptor of it and leaves the queued one where it is.

Elsewhere, and where the system refuses to have one more in flight (ETOOMANYREFS), the descriptor
itself is kept.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN_PREFIX = "listen:"  # of the names of what is kept in flight


class DescriptorStore:
    """Descriptors by name.

    What goes in belongs to the store, what comes out is a duplicate for the caller to close.
    """

    def __init__(self) -> None:
        self._plain: dict[str, int] = {}
        # sending and receiving end
        self._in_flight: dict[str, tuple[socket.socket, socket.socket]] = {}

    def names(self) -> list[str]:
        return sorted([*self._plain, *self._in_flight])

    def __contains__(self, name: str) -> bool:
        return name in self._plain or name in self._in_flight

    def put(self, name: str, fd: int) -> None:
        """Store a descriptor, in the place of an earlier one of that name."""
        self.drop(name)
        if name.startswith(HIDDEN_PREFIX) and sys.platform == "linux":
            pair = _send_away(fd)
            if pair is not None:
                self._in_flight[name] = pair
                os.close(fd)
                return
        self._plain[name] = fd

    def take(self, name: str) -> int:
        """Return a new descriptor, not inheritable, of what is stored under a name.

        Raises KeyError: there is nothing of that name, or no more; OSError: too many descriptors
        are open.
        """
        if name in self._plain:
            return os.dup(self._plain[name])
        _, receiver = self._in_flight[name]
        fd = _peek(receiver)
        if fd < 0:
            # The kernel leaves out what does not fit under the limit of open files.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fd

    def drop(self, name: str) -> None:
        """Close what is stored under a name, if anything is."""
        fd = self._plain.pop(name, None)
        if fd is not None:
            os.close(fd)
        for end in self._in_flight.pop(name, ()):
            end.close()

    def hand_over(self) -> dict[str, int]:
        """Return a duplicate of everything, by name, for the keeper's next version; the caller
        closes or execs.
        """
        duplicates: dict[str, int] = {}
        try:
            for name in self.names():
                duplicates[name] = self.take(name)
        except OSError:
            for fd in duplicates.values():
                os.close(fd)
            raise
        return duplicates

    def take_over(self, descriptors: Mapping[str, int]) -> None:
        """Store what an earlier version handed over."""
        for name, fd in descriptors.items():
            os.set_inheritable(fd, False)
            self.put(name, fd)


def _send_away(fd: int) -> tuple[socket.socket, socket.socket] | None:
    """Put a duplicate of a descriptor into flight; return both ends of its pair, or None where
    that is refused.
    """
    try:
        sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    fd_bytes = struct.pack("i", fd)
    try:
        sender.sendmsg(
            [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd_bytes)], socket.MSG_DONTWAIT
        )
        peeked = _peek(receiver)
    except OSError:
        peeked = -1
    # A system whose peek gives no descriptor could never give it back.
    if peeked < 0:
        sender.close()
        receiver.close()
        return None
    os.close(peeked)
    return sender, receiver


def _peek(receiver: socket.socket) -> int:
    """Return a new descriptor of what is in flight, -1 for none."""
    # Not by socket.recv_fds: up to Python 3.11 that ignores its flags.
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    _, ancillary, _, _ = receiver.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("i")), flags)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fd: int = struct.unpack("i", content)[0]
            return fd
    return -1
