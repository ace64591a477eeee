"""One daemon a directory: the lock that lives exactly as long as the daemon does, across exec, and
its control socket.

The lock file says who holds it (pid, kernel start time). A lock that is held though its holder is
dead belongs to the clean-up after a killed keeper, which ends by itself: then we wait. A socket
file that somebody answers on is never unlinked: connect decides, and only the holder of the lock
asks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisord_py.api.auth import peer_of
from supervisord_py.daemon.paths import PlaceError
from supervisord_py.errors import ConflictError
from supervisord_py.keeper import procfs

CLEANUP_SECONDS = 15.0  # how long the clean-up after a killed keeper may take before we give up
POLL_SECONDS = 0.05
FIRST_INHERITED = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
LAUNCHD_SOCKET = "pxd"  # its name under Sockets of the property list
BACKLOG = 1024  # as of the API, which listens on it


class AlreadyRunningError(ConflictError):
    """Another daemon holds these directories; `pid` is its keeper's, where known."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        who = f"pid {pid}" if pid else "a process that did not say who it is"
        super().__init__(
            f"another daemon ({who}) already holds {folder}",
            hint="`pxctl daemon status` shows it, `pxctl daemon stop` stops it; PX_HOME gives a "
            "second one its place",
            pid=pid,
        )


def take_lock(path: Path) -> int:
    """Lock `path` and return the descriptor (close-on-exec).

    Raises AlreadyRunningError: a living daemon holds it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + CLEANUP_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            pid = holder(path)
            if pid is not None or time.monotonic() >= deadline:
                os.close(fd)
                raise AlreadyRunningError(path.parent, pid) from None
            time.sleep(POLL_SECONDS)
        else:
            os.fchmod(fd, 0o600)
            return fd


def sign_lock(fd: int) -> None:
    """Write into a lock we hold who we are. The pid stays true over exec."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} {_start_time(os.getpid())}\n".encode(), 0)


def holder(path: Path) -> int | None:
    """Return the pid of the living process that signed the lock file; a later one with the same
    pid does not count.
    """
    try:
        pid, started = map(int, path.read_text("ascii").split()[:2])
    except (OSError, ValueError):
        return None
    return pid if started == _start_time(pid) else None


def _start_time(pid: int) -> int | None:
    row = procfs.look(pid)
    return row.start_time if row is not None and row.alive else None


def bind_socket(path: Path) -> socket.socket:
    """Bind and listen on `path`. Call only with the lock held, under a umask that closes it to
    others.

    Raises AlreadyRunningError: somebody answers there; PlaceError: it cannot be.
    """
    if path.is_socket():
        _unlink_dead(path)
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fresh.bind(str(path))
        path.chmod(0o600)
        fresh.listen(BACKLOG)
    except OSError as error:
        fresh.close()
        hint = f"PX_SOCKET=PATH puts it elsewhere, for pxd and pxctl; look first: ls -l {path}"
        raise PlaceError(
            f"cannot bind the control socket {path}: {error.strerror}", hint=hint
        ) from error
    return fresh


def _unlink_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        except OSError:  # in doubt somebody is there
            raise AlreadyRunningError(path.parent, None) from None
        else:
            raise AlreadyRunningError(path.parent, peer_of(probe)[0])  # who called listen()


def inherited_socket(
    environ: Mapping[str, str], pid: int, activate: Callable[..., int] | None = None
) -> socket.socket | None:
    """Return the socket that systemd (by LISTEN_FDS) or launchd gives us, or None when neither
    does.

    All descriptors that come become close-on-exec. `activate` is launch_activate_socket(3), by
    default macOS's own. Raises PlaceError: what was inherited is not one listening Unix stream
    socket.
    """
    text = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") == str(pid) and text.isdigit():
        fds = list(range(FIRST_INHERITED, FIRST_INHERITED + int(text)))
    else:
        fds = _launchd_sockets(activate)
    for fd in fds:
        # a number that is no descriptor is told by `adopt_socket`
        with contextlib.suppress(OSError):
            os.set_inheritable(fd, False)
    if len(fds) > 1:
        hint = (
            "leave one ListenStream= in the systemd socket unit, one of Sockets in the property "
            "list"
        )
        raise PlaceError(f"the service manager passed {len(fds)} sockets, pxd takes one", hint=hint)
    return adopt_socket(fds[0]) if fds else None


def _launchd_sockets(activate: Callable[..., int] | None) -> list[int]:
    """Return the descriptors that launchd holds for us: none where it did not start us, or has
    no Sockets for us.
    """
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
    """Take over a listening Unix stream socket that somebody else made; PlaceError when `fd` is
    something else.
    """
    with contextlib.suppress(OSError):
        found = socket.socket(fileno=fd)
        listens = sys.platform == "darwin" or found.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
        if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM and listens:
            return found
        found.detach()
    hint = "use ListenStream=%t/pxd/pxd.sock in the systemd socket unit"
    raise PlaceError(f"inherited descriptor {fd} is no listening Unix stream socket", hint=hint)
