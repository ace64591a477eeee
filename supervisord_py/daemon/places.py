"""Makes the directories of the daemon, private from their first instant, under any umask.

A directory that holds the socket, the lock or the ledger must be a real directory of ours: a symbolic link or one that
belongs to somebody else is refused, never followed and never repaired, because its owner could swap what we put there.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from supervisord_py.daemon.paths import PlaceError
from supervisord_py.errors import ForbiddenError

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.daemon.paths import Paths

PRIVATE = 0o700
_ALL = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


def make_places(paths: Paths) -> None:
    """Make every directory of `paths` that is not there yet.

    Raises:
        ForbiddenError: One is a symbolic link, belongs to another user, or may not be made.
        PlaceError: Something that is no directory is in the way, or the disk refuses.
    """
    guarded_ones = (paths.run_dir, paths.state_dir, paths.log_dir, paths.kernel_run_dir, paths.cells_dir)
    for guarded in (*guarded_ones, paths.executions_dir, paths.kernels_dir):
        _make(guarded)
        guard_directory(guarded)
    # A socket may be put where others live too (/tmp), and folders of tools may be links to a checkout.
    for shared in (paths.socket.parent, paths.tools_dir, paths.pipes_dir):
        _make(shared)


def guard_directory(path: Path) -> None:
    """Check that `path` is a real directory of ours and close it to everybody else.

    Raises:
        ForbiddenError: It is a symbolic link or belongs to another user.
        PlaceError: It is no directory.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        _own(path, os.fstat(fd), fd)
    finally:
        os.close(fd)


def _own(path: Path, seen: os.stat_result, fd: int) -> None:
    if seen.st_uid != os.geteuid():
        raise ForbiddenError(
            f"{path} belongs to uid {seen.st_uid}, not to uid {os.geteuid()} that runs this daemon",
            hint=f"remove it or choose another place (PX_HOME, XDG_RUNTIME_DIR); look first: ls -ld {path}",
        )
    if stat.S_IMODE(seen.st_mode) & _ALL != PRIVATE:
        os.fchmod(fd, PRIVATE)


def _make(path: Path) -> None:
    """Make `path` and what is missing above it; each is made private, none that exists is changed."""
    missing = []
    at = path
    while not os.path.lexists(at):
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        try:
            os.mkdir(each, PRIVATE)
        except FileExistsError:
            continue
        except OSError as error:
            raise _refusal(each, error) from error
        # A umask like 0277 takes the owner's own bits; nobody else ever had any, so this opens nothing.
        os.chmod(each, PRIVATE)


def _refusal(path: Path, error: OSError) -> ForbiddenError | PlaceError:
    if path.is_symlink():
        return ForbiddenError(
            f"{path} is a symbolic link; the daemon's own directories must be real ones",
            hint=f"remove the link or choose another place (PX_HOME); look first: ls -ld {path}",
        )
    if isinstance(error, PermissionError):
        return ForbiddenError(
            f"cannot use {path}: {error.strerror}",
            hint="run pxd as the owner of that directory, or choose another place (PX_HOME)",
        )
    return PlaceError(
        f"cannot use {path} as a directory: {error.strerror}",
        hint=f"look at what is there: ls -ld {path} {path.parent}; df -h {path.parent}",
    )
