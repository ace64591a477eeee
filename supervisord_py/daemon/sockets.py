"""The control socket and the optional loopback port with its token: made, inherited, served on.

The control socket is private from its first instant. A socket file that somebody answers on is never unlinked: connect
decides, and only the holder of the lock asks.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING

from supervisord_py.daemon.lock import AlreadyRunningError
from supervisord_py.daemon.paths import PlaceError, check_socket_length
from supervisord_py.errors import ConfigError, ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.api.context import TcpAccess

FIRST_INHERITED = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
LAUNCHD_SOCKET = "pxd"  # its name under Sockets of the property list
BACKLOG = 1024  # as of the API, which listens on it
TOKEN_LETTERS = 16  # a shorter token is no secret


def inherited_socket(
    environ: Mapping[str, str], pid: int, activate: Callable[..., int] | None = None
) -> socket.socket | None:
    """Return the socket that systemd (by LISTEN_FDS) or launchd gives us, or None when neither does.

    All descriptors that come become close-on-exec. `activate` is launch_activate_socket(3), by default macOS's own.

    Raises PlaceError: what was inherited is not one listening Unix stream socket.
    """
    text = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") == str(pid) and text.isdigit():
        fds = list(range(FIRST_INHERITED, FIRST_INHERITED + int(text)))
    else:
        fds = _launchd_sockets(activate)
    for fd in fds:
        with contextlib.suppress(OSError):  # a number that is no descriptor is told by `adopt_socket`
            os.set_inheritable(fd, False)
    if len(fds) > 1:
        raise PlaceError(
            f"the service manager passed {len(fds)} sockets, pxd takes one",
            hint="leave one ListenStream= in the systemd socket unit, one of Sockets in the property list",
        )
    return adopt_socket(fds[0]) if fds else None


def _launchd_sockets(activate: Callable[..., int] | None) -> list[int]:
    """Return the descriptors that launchd holds for us: none where it did not start us, or has no Sockets for us."""
    if activate is None and sys.platform != "darwin":
        return []
    import ctypes

    libc = ctypes.CDLL(None)
    found, count = ctypes.POINTER(ctypes.c_int)(), ctypes.c_size_t()
    call = activate or libc.launch_activate_socket
    error = call(LAUNCHD_SOCKET.encode(), ctypes.byref(found), ctypes.byref(count))
    if error in {errno.ENOENT, errno.ESRCH}:
        return []
    if error:
        detail = f"launchd does not give us its socket: {os.strerror(error)}"
        raise PlaceError(detail, hint="pxctl daemon uninstall && pxctl daemon install --on-demand")
    fds = found[: count.value]
    libc.free(found)
    return fds


def adopt_socket(fd: int) -> socket.socket:
    """Take over a listening Unix stream socket that somebody else made; PlaceError when `fd` is something else."""
    try:
        found = socket.socket(fileno=fd)
    except OSError:
        found = None
    if found is not None:
        listens = sys.platform == "darwin" or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM and listens:
            return found
        found.detach()
    raise PlaceError(
        f"inherited descriptor {fd} is no listening Unix stream socket",
        hint="use ListenStream=%t/pxd/pxd.sock in the systemd socket unit",
    )


def bind_socket(path: Path) -> socket.socket:
    """Bind and listen on `path`, private from the first instant. Call only with the lock held.

    Raises AlreadyRunningError: somebody answers there; PlaceError: the path is too long, or something that is no
    socket is in the way.
    """
    check_socket_length(path)
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _clear(path)
        fresh.bind(str(path))
        path.chmod(0o600)
        fresh.listen(BACKLOG)
    except BaseException as error:
        fresh.close()
        if not isinstance(error, OSError):
            raise
        raise PlaceError(
            f"cannot bind the control socket {path}: {error.strerror}",
            hint=f"PX_SOCKET=PATH puts it elsewhere, for pxd and pxctl; look first: ls -l {path}",
        ) from error
    finally:
        os.umask(before)
    return fresh


def _clear(path: Path) -> None:
    """Remove a socket file that a daemon without a life left behind; whatever else is there makes the bind fail."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:  # in doubt somebody is there
            raise AlreadyRunningError(path.parent, None) from None
        pid = None
        if sys.platform == "linux":  # who called listen() on the other end (unix(7), SO_PEERCRED)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid = struct.unpack("3i", credentials)[0]
        raise AlreadyRunningError(path.parent, pid)


def parse_listen(text: str) -> tuple[str, int]:
    """Split `host:port` (`[::1]:7860` for IPv6) of a loopback address; ValueError says why it is no such pair."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be address:port, like 127.0.0.1:7860")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
    except ValueError:
        raise ValueError(f"has {bare!r}, which is no address") from None
    if not address.is_loopback:
        raise ValueError(f"has {bare}, which is no loopback address; use 127.0.0.1 and a tunnel from outside")
    return str(address), int(port)


def open_tcp(listen: str, token_file: Path) -> tuple[socket.socket, TcpAccess]:
    """Bind the loopback port of `[api] listen` and get its token.

    Raises ConfigError: the token file cannot be used; ConflictError: the port cannot be had.
    """
    from supervisord_py.api.context import TcpAccess

    host, port = parse_listen(listen)
    token = read_or_make_token(token_file)
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


def read_or_make_token(path: Path) -> str:
    """Return the token in `path`; make the file (0600) with a fresh one when it is not there.

    Raises ConfigError: the file is not ours alone (somebody may have read it), holds no secret, or cannot be used.
    """

    from supervisord_py.config.documents import read_bounded  # only who listens on TCP needs it

    def unusable(why: str) -> ConfigError:
        hint = f"rm {path} and `pxctl daemon restart` make a new one"
        return ConfigError(f"the token file {path} {why}", hint=hint, file=str(path))

    try:
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as fresh:
                os.fchmod(fd, 0o600)
                fresh.write(f"{secrets.token_urlsafe(32)}\n")
        seen, token = path.lstat(), read_bounded(path, 4096).decode("utf-8", "replace").strip()
    except OSError as error:
        raise unusable(f"cannot be read or made: {error.strerror}") from error
    if stat.S_ISLNK(seen.st_mode) or seen.st_uid not in {os.geteuid(), 0} or seen.st_mode & 0o077:
        raise unusable(f"may be read by others (mode {stat.S_IMODE(seen.st_mode):04o}, uid {seen.st_uid})")
    if len(token) < TOKEN_LETTERS or not token.isascii() or not token.isprintable():
        raise unusable(f"holds no token of at least {TOKEN_LETTERS} printable ASCII letters")
    return token
