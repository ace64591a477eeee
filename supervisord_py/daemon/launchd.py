"""Socket activation by launchd: launch_activate_socket(3), through ctypes.

There is no environment for it, as LISTEN_FDS is one: the call may be made once, early, and says by its result whether
launchd has a socket for us.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from supervisord_py.daemon.paths import PlaceError

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET_NAME = "pxd"
"""The key under `Sockets` of a property list that passes one."""

NOTHING_FOR_US = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOSYS})
"""No such name; not started by launchd; no such function here."""


def launchd_socket(activate: Callable[[str], tuple[int, list[int]]]) -> int | None:
    """Return the descriptor that launchd holds for us, or None.

    Args:
        activate: Takes the socket's name, returns (errno, descriptors).

    Raises:
        PlaceError: launchd refused, or gave more than one.
    """
    code, fds = activate(SOCKET_NAME)
    if code in NOTHING_FOR_US:
        return None
    if code != 0:
        raise PlaceError(
            f"launchd does not hand over the socket {SOCKET_NAME!r}: {os.strerror(code)}",
            hint="`launchctl print gui/$(id -u)/io.github.supervisord-py.pxd` shows the job",
        )
    if len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise PlaceError(
            f"launchd passed {len(fds)} sockets under {SOCKET_NAME!r}, pxd takes one",
            hint="give SockPathName once in the property list",
        )
    os.set_inheritable(fds[0], False)
    return fds[0]


def system_activate(name: str) -> tuple[int, list[int]]:
    """Call libSystem. Anywhere but on macOS there is no such function (ENOSYS)."""
    library = ctypes.CDLL(None, use_errno=True)
    return _call(library, name) if hasattr(library, "launch_activate_socket") else (errno.ENOSYS, [])


def _call(library: ctypes.CDLL, name: str) -> tuple[int, list[int]]:
    """Call `launch_activate_socket(name, &fds, &count)` of `library`; the array is ours to free."""
    fds = ctypes.POINTER(ctypes.c_int)()
    count = ctypes.c_size_t()
    code: int = library.launch_activate_socket(name.encode(), ctypes.byref(fds), ctypes.byref(count))
    if code != 0:
        return code, []
    found = [fds[index] for index in range(count.value)]
    library.free(fds)
    return 0, found
