"""Checks that need no daemon: is pxd there, are its directories private, can its socket be used.

Law: a check changes nothing, and never raises for what it finds.
"""

from __future__ import annotations

import os
import stat
import sys

from pxctl.failure import Failure
from pxctl.starting import daemon_environment, find_pxd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_SUN_PATH = 108 if sys.platform == "linux" else 104
"""Bytes of sockaddr_un.sun_path with the NUL that ends it: unix(7), sys/un.h of macOS."""
_OTHERS = 0o077


class Check:
    """One finding: `ok`, `warn` or `fail`, and the one command that repairs it."""

    __slots__ = ("detail", "name", "repair", "status")

    def __init__(self, name: str, status: str, detail: str, repair: str | None = None) -> None:
        self.name = name
        self.status = status
        self.detail = detail
        self.repair = repair

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"name": self.name, "status": self.status, "detail": self.detail, "repair": self.repair}


def local_checks(invocation: Invocation) -> list[Check]:
    """Look at everything that can be judged from here."""
    try:
        places = invocation.places
    except Failure as failure:
        return [Check("places", "fail", failure.detail, failure.hint)]
    return [
        _check_program(invocation),
        _check_socket_length(places.socket),
        _check_directory("run directory", places.run_dir),
        _check_directory("state directory", places.state_dir),
        _check_directory("log directory", places.log_dir),
        _check_socket(places.socket),
    ]


def _check_program(invocation: Invocation) -> Check:
    try:
        path = find_pxd(daemon_environment(invocation))
    except Failure as failure:
        return Check("pxd", "fail", failure.detail, failure.hint)
    return Check("pxd", "ok", f"the daemon's program is {path}")


def _check_socket_length(path: str) -> Check:
    size = len(os.fsencode(path))
    if size < _SUN_PATH:
        return Check("socket path", "ok", f"{path} has {size} of at most {_SUN_PATH - 1} bytes")
    return Check(
        "socket path",
        "fail",
        f"{path} has {size} bytes; this platform takes at most {_SUN_PATH - 1}",
        f"export PX_SOCKET=/tmp/pxd-{os.getuid()}.sock",
    )


def _check_directory(name: str, path: str) -> Check:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return Check(name, "ok", f"{path} is not there yet; the daemon makes it")
    except OSError as error:
        return Check(name, "fail", f"{path}: {error.strerror}", f"ls -ld {path}")
    if not stat.S_ISDIR(found.st_mode):
        return Check(name, "fail", f"{path} is not a real directory", f"ls -ld {path}")
    if found.st_uid != os.geteuid():
        return Check(name, "fail", f"{path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}", f"ls -ld {path}")
    if found.st_mode & _OTHERS:
        return Check(name, "warn", f"{path} is open to others (mode {found.st_mode & 0o777:04o})", f"chmod 700 {path}")
    return Check(name, "ok", f"{path} is private")


def _check_socket(path: str) -> Check:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return Check("socket", "warn", f"{path} is not there: no daemon has made it", "pxctl daemon start")
    except OSError as error:
        return Check("socket", "fail", f"{path}: {error.strerror}", f"ls -l {path}")
    if not stat.S_ISSOCK(found.st_mode):
        return Check("socket", "fail", f"{path} is not a socket", f"rm {path}")
    if found.st_mode & _OTHERS:
        return Check(
            "socket", "warn", f"{path} is open to others (mode {found.st_mode & 0o777:04o})", f"chmod 600 {path}"
        )
    return Check("socket", "ok", f"{path} is private")
