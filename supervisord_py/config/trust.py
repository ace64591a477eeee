"""May what lies in a folder run as us? Only if nobody but us and root can put it there.

Whoever may write into a folder of tools or pipes runs code as the daemon's user. So may the owner
of the folder, of a file in it, and of the folder above, who can exchange it. Our own group does not
count as others: many systems give each user a group of one, and a umask of 002. Access control
lists are not looked at.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache

# how a user namespace shows all users that it does not map (user_namespaces(7))
_EVERYBODY_OUTSIDE = 65534


def untrusted(path: str | os.PathLike[str], *, sticky: bool = False) -> str | None:
    """Return why others could change a folder or file, or None if they cannot, or if it is not
    there.

    `sticky`: a folder will do in which everybody may make files, but nobody may exchange those of
    others (/tmp).
    """
    place = os.fspath(path)
    try:
        link = os.lstat(place)
        if not stat.S_ISLNK(link.st_mode):
            return _trouble(place, link, sticky=sticky)
        # A link is as good as who made it, what it leads to, and the folder in which that lies.
        target = os.path.realpath(place)
        above = os.path.dirname(target)
        return (
            _foreign(place, link.st_uid)
            or _trouble(target, os.stat(target), sticky=sticky)
            or _trouble(above, os.stat(above), sticky=True)
        )
    except OSError:
        return None


def untrusted_directory(path: str | os.PathLike[str]) -> str | None:
    """Return why others could put something into a directory of tools or pipes, or exchange it;
    None if they cannot.
    """
    above = os.path.dirname(os.path.abspath(path))
    return untrusted(path) or untrusted(above, sticky=True)


def _trouble(path: str, seen: os.stat_result, *, sticky: bool) -> str | None:
    mode = stat.S_IMODE(seen.st_mode)
    if trouble := _foreign(path, seen.st_uid):
        return trouble
    if sticky and mode & stat.S_ISVTX:
        return None
    if mode & stat.S_IWOTH:
        return f"{path} may be written by everybody (mode {mode:04o})"
    if mode & stat.S_IWGRP and seen.st_gid not in {os.getegid(), 0}:
        return f"{path} may be written by the group {seen.st_gid} (mode {mode:04o})"
    return None


def _foreign(path: str, uid: int) -> str | None:
    if uid in {os.geteuid(), 0} or (uid == _EVERYBODY_OUTSIDE and _is_in_namespace()):
        return None
    return f"{path} belongs to uid {uid}, not to uid {os.geteuid()} that runs the daemon"


@cache
def _is_in_namespace() -> bool:
    """Say whether some users of the machine have no number here."""
    with suppress(OSError, ValueError), open("/proc/self/uid_map", encoding="ascii") as file:
        return sum(int(line.split()[2]) for line in file) < 2**32 - 1
    return False
