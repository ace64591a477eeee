"""The control socket and the optional loopback port with its token: made, inherited, served on.

The control socket is private from its first instant. A socket file that somebody answers on is never unlinked: connect
decides, and only the holder of the lock asks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING

from supervisord_py.daemon.lock import already_running
from supervisord_py.daemon.paths import PlaceError, check_socket_length
from supervisord_py.errors import ConfigError, ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aiohttp import web

    from supervisord_py.api.context import TcpAccess
    from supervisord_py.daemon.paths import Paths

FIRST_INHERITED = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)

BACKLOG = 1024  # while the control plane restarts, clients wait here; the kernel caps it at net.core.somaxconn
TCP_BACKLOG = 128
TOKEN_NAME = "api.token"  # noqa: S105 - the name of a file
TOKEN_LETTERS = 16  # a shorter token is no secret


def inherited_socket(environ: Mapping[str, str], pid: int, first: int = FIRST_INHERITED) -> socket.socket | None:
    """Return the socket that LISTEN_FDS gives us, or None when it gives none to this process.

    All descriptors of LISTEN_FDS become close-on-exec; more than one is refused.

    Raises PlaceError: what was inherited is not one listening Unix stream socket.
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
    """Take over a listening Unix stream socket that somebody else made. Raises PlaceError: `fd` is something else."""
    try:
        found = socket.socket(fileno=fd) if stat.S_ISSOCK(os.fstat(fd).st_mode) else None
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

    Raises AlreadyRunningError: somebody answers there; PlaceError: the path is too long, or something that is no
    socket is in the way.
    """
    check_socket_length(path)
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        before = os.umask(0o177)
        try:
            fresh.bind(str(path))
        finally:
            os.umask(before)
        path.chmod(0o600)
        fresh.listen(BACKLOG)
    except OSError as error:
        fresh.close()
        raise PlaceError(
            f"cannot bind the control socket {path}: {error.strerror}",
            hint="PX_SOCKET=PATH puts it elsewhere, for pxd and pxctl",
        ) from error
    except BaseException:
        fresh.close()
        raise
    return fresh


def _clear(path: Path) -> None:
    """Remove a socket file that a daemon without a life left behind; refuse whatever else is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise PlaceError(
            f"{path} is there and is no socket",
            hint=f"move it away, or set PX_SOCKET to another path; look first: ls -l {path}",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in {errno.ECONNREFUSED, errno.ENOENT}:  # in doubt somebody is there
                raise already_running(path.parent, None) from None
        else:
            raise already_running(path.parent, _peer_pid(probe))
    path.unlink(missing_ok=True)


def _peer_pid(connection: socket.socket) -> int | None:
    """Return the pid that called listen() on the other end (unix(7), SO_PEERCRED), where the kernel tells."""
    if sys.platform != "linux":
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None


def open_tcp(listen: str, token_path: Path) -> tuple[socket.socket, TcpAccess]:
    """Bind the loopback port of `[api] listen` and get its token.

    Raises ConfigError: the token file cannot be used; ConflictError: the port cannot be had.
    """
    from supervisord_py.api.context import TcpAccess
    from supervisord_py.daemon.settings import parse_listen

    host, port = parse_listen(listen)
    token = read_or_make_token(token_path)
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConflictError(
            f"cannot listen on {listen}: {error.strerror}",
            hint="choose another port in [api] listen, then `pxctl daemon restart`",
        ) from error
    return listening, TcpAccess(token, listening.getsockname()[1])


def token_file(paths: Paths) -> Path:
    """Return where the token of the loopback port lies."""
    return paths.state_dir / TOKEN_NAME


def read_or_make_token(path: Path) -> str:
    """Return the token in `path`; make the file (0600) with a fresh one when it is not there.

    Raises ConfigError: the file is not ours alone (somebody may have read it), holds no secret, or cannot be used.
    """

    def unusable(why: str) -> ConfigError:
        hint = f"rm {path} and `pxctl daemon restart` make a new one"
        return ConfigError(f"the token file {path} {why}", hint=hint, file=str(path))

    try:
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as fresh:
                os.fchmod(fd, 0o600)
                fresh.write(f"{secrets.token_urlsafe(32)}\n")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            seen = os.fstat(file.fileno())
            token = file.read(4096).decode("utf-8", "replace").strip()
    except OSError as error:
        raise unusable(f"cannot be read or made: {error.strerror}") from error
    if seen.st_uid not in {os.geteuid(), 0} or seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise unusable(f"may be read by others (mode {stat.S_IMODE(seen.st_mode):04o}, uid {seen.st_uid})")
    if len(token) < TOKEN_LETTERS or not token.isascii() or not token.isprintable():
        raise unusable(f"holds no token of at least {TOKEN_LETTERS} printable ASCII letters")
    return token


async def serve_on(runner: web.AppRunner, unix: socket.socket, tcp: socket.socket | None) -> None:
    """Serve on both sockets; the runner closes them. Serving calls listen(2) again, which sets the backlog anew."""
    from aiohttp import web

    await runner.setup()
    await web.SockSite(runner, unix, backlog=BACKLOG).start()
    if tcp is not None:
        await web.SockSite(runner, tcp, backlog=TCP_BACKLOG).start()
