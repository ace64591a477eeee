"""The control socket: inherited from a service manager, or bound here, private from its first instant.

A socket file that somebody answers on is never unlinked: connect decides, and only the holder of the lock asks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING

from supervisord_py.daemon.lock import already_running
from supervisord_py.daemon.paths import PlaceError, check_socket_length

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIRST_INHERITED = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""

BACKLOG = 1024
"""While the control plane restarts, clients wait here; the kernel caps it at net.core.somaxconn."""


def inherited_socket(environ: Mapping[str, str], pid: int, first: int = FIRST_INHERITED) -> socket.socket | None:
    """Return the socket that LISTEN_FDS gives us, or None when it gives none to this process.

    All descriptors of LISTEN_FDS become close-on-exec; more than one is refused.

    Raises:
        PlaceError: What was inherited is not one listening Unix stream socket.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return None
    count = int(text) if (text := environ.get("LISTEN_FDS", "")).isdigit() else 0
    if count == 0:
        return None
    for fd in range(first, first + count):
        with contextlib.suppress(OSError):  # a number that is no descriptor is told by `adopt_socket`
            os.set_inheritable(fd, False)
    if count > 1:
        raise PlaceError(
            f"LISTEN_FDS={count}: the service manager passed {count} sockets, pxd takes one",
            hint="leave one ListenStream= in the systemd socket unit",
        )
    return adopt_socket(first)


def adopt_socket(fd: int) -> socket.socket:
    """Take over a listening Unix stream socket that somebody else made.

    Raises:
        PlaceError: `fd` is something else.
    """
    try:
        mode = os.fstat(fd).st_mode
        found = socket.socket(fileno=fd) if stat.S_ISSOCK(mode) else None
    except OSError:
        found = None
    if found is None:
        raise PlaceError(f"inherited descriptor {fd} is no socket", hint="look at the systemd socket unit or the plist")
    listens = sys.platform == "darwin" or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM or not listens:
        found.detach()
        raise PlaceError(
            f"inherited descriptor {fd} is no listening Unix stream socket",
            hint="use ListenStream=%t/pxd/pxd.sock in the systemd socket unit",
        )
    return found


def bind_socket(path: Path) -> socket.socket:
    """Bind and listen on `path`. Call only with the lock held.

    Raises:
        AlreadyRunningError: Somebody answers there.
        PlaceError: The path is too long, or something that is no socket is in the way.
    """
    check_socket_length(path)
    _clear(path)
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            fresh.bind(str(path))
        finally:
            os.umask(before)
        os.chmod(path, 0o600)
        fresh.listen(BACKLOG)
    except OSError as error:
        fresh.close()
        raise PlaceError(
            f"cannot bind the control socket {path}: {error.strerror}",
            hint="PX_SOCKET=PATH puts it elsewhere, for pxd and pxctl",
        ) from error
    return fresh


def _clear(path: Path) -> None:
    """Remove a socket file that a daemon without a life left behind; refuse whatever else is there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise PlaceError(
            f"cannot look at {path}: {error.strerror}", hint="PX_SOCKET=PATH puts the socket elsewhere"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise PlaceError(
            f"{path} is there and is no socket",
            hint=f"move it away, or set PX_SOCKET to another path; look first: ls -l {path}",
        )
    answering, pid = _ask(path)
    if answering:
        raise already_running(path.parent, pid)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _ask(path: Path) -> tuple[bool, int | None]:
    """Say whether somebody listens on `path`, and who. In doubt somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in {errno.ECONNREFUSED, errno.ENOENT}, None
        return True, _peer_pid(probe)


def _peer_pid(connection: socket.socket) -> int | None:
    """Return the pid that called listen() on the other end (unix(7), SO_PEERCRED), where the kernel tells."""
    if sys.platform != "linux":
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None
