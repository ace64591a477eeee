"""The log file of a daemon that is started in the background: opened safely, or refused.

The rules are those of the daemon for its own folders: real ones, ours, closed to others. Another
user's folder could hold a link, and what is written through it would go to a file of that user's
choice. Everything is opened relative to the folder that was checked, so that no folder can be
exchanged between the look and the use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import BinaryIO

from pxctl.client import Failure

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO in its place must not make us wait.
_FILE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_log(path: str, *, own_folder: bool) -> BinaryIO:
    """Open the log at `path` for appending; make its folder, and without `own_folder` that folder's
    parent, 0700.

    Without `own_folder` the parent is the daemon's state directory and checked, too. Raises Failure
    if a folder or the file is a link or belongs to another user, or cannot be made.
    """
    folder = os.path.dirname(path)
    opened: list[int] = []
    try:
        if own_folder:
            opened.append(_open_folder(folder, folder, None))
        else:
            state = os.path.dirname(folder)
            opened.append(_open_folder(state, state, None))
            opened.append(_open_folder(folder, os.path.basename(folder), opened[0]))
        return _open_file(path, opened[-1])
    finally:
        for fd in opened:
            os.close(fd)


def _open_folder(path: str, name: str, parent: int | None) -> int:
    """Make a folder unless it is there, open it, and check it; `name` is relative to `parent`,
    if there is one.
    """
    try:
        if parent is None:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        seen = os.fstat(fd)
        if seen.st_uid != os.geteuid():
            raise _foreign(path, seen.st_uid)
        if seen.st_mode & 0o077:
            os.fchmod(fd, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_file(path: str, folder: int) -> BinaryIO:
    try:
        fd = os.open(os.path.basename(path), _FILE, 0o600, dir_fd=folder)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1:
            raise _refused(f"{path} is not a regular file with one name", path)
        if seen.st_uid != os.geteuid():
            raise _foreign(path, seen.st_uid)
        os.set_blocking(fd, True)
        return os.fdopen(fd, "ab", buffering=0)
    except BaseException:
        os.close(fd)
        raise


def _refusal(path: str, error: OSError) -> Failure:
    if os.path.islink(path) or error.errno == errno.ELOOP:
        return _refused(
            f"{path} is a symbolic link; the daemon's own files and directories must be real ones",
            path,
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENOTDIR, errno.EISDIR}:
        return _refused(f"cannot use {path} for the log: {error.strerror}", path)
    return Failure(
        f"cannot write the log {path}: {error.strerror}",
        kind="start_failed",
        hint="df -h; pxctl doctor",
    )


def _foreign(path: str, uid: int) -> Failure:
    return _refused(
        f"{path} belongs to uid {uid}, not to uid {os.geteuid()} that runs this daemon", path
    )


def _refused(detail: str, path: str) -> Failure:
    hint = f"remove it or choose another place (PX_HOME, XDG_STATE_HOME); look first: ls -ld {path}"
    return Failure(detail, kind="forbidden", hint=hint, path=path)
