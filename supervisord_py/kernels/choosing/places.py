"""Looks at directories: the working directory, folders of modules, the shell. File I/O: call it in a thread."""

from __future__ import annotations

import contextlib
import os
import re
import shutil

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.shortened import shortened

PATH_MAX, PART_MAX = 4096, 255
"""limits.h of Linux; no other system that we know takes more."""
PROJECT_MODULES = ".pxd/modules"
_VERSIONED = re.compile(r"python[0-9.]*")


def real_cwd(cwd: str | None, home: str) -> str:
    """Return the real path of a working directory; None is the home directory.

    Raises:
        InvalidInputError: It is not absolute, not there, no directory, or closed to us.
    """
    wanted = home if cwd is None else cwd
    if not wanted.startswith("/") or "\0" in wanted:
        raise _refused(f"Working directory is not an absolute path: {shortened(repr(wanted))}")
    if is_too_long(wanted):
        raise _refused(f"Working directory has a name longer than a path can be: {shortened(wanted)}")
    if not os.path.exists(wanted):
        raise _refused(f"Working directory does not exist: {wanted}")
    if not os.path.isdir(wanted):
        raise _refused(f"Working directory is not a directory: {wanted}")
    if not os.access(wanted, os.X_OK):
        raise _refused(f"Working directory cannot be entered: {wanted}")
    real = os.path.realpath(wanted)
    if not is_text(real):
        raise _refused(f"Working directory has a name that is no UTF-8: {os.fsencode(real)!r}")
    return real


def check_interpreter(wanted: str | None) -> None:
    """Check that what is asked for could be an interpreter at all.

    Raises:
        InvalidInputError: It is longer than a path or a name can be.
    """
    if wanted is not None and is_too_long(wanted):
        message = f"the interpreter has a name longer than a path can be: {shortened(wanted)}"
        errors = [{"pointer": "/interpreter", "message": message}]
        raise InvalidInputError(message, hint="name an interpreter, its environment, or managed", errors=errors)


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(
        message, hint="name a directory that exists, with --cwd", errors=[{"pointer": "/cwd", "message": message}]
    )


def is_too_long(path: str) -> bool:
    """Say whether no system takes a path as long as this, or one part of it."""
    return len(path) >= PATH_MAX or any(len(part) > PART_MAX for part in path.split("/"))


def is_text(name: str) -> bool:
    """Say whether a name from the file system can be told and stored: it is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_trusted(path: str, cwd: str) -> bool:
    """Say whether what lies in a working directory may be run because it lies there.

    It may when it belongs to us, to root, or to whom the directory belongs; what a stranger put into a directory that
    is open to all may not. What is not there is not mistrusted.
    """
    try:
        return os.stat(path).st_uid in {os.geteuid(), 0, os.stat(cwd).st_uid}
    except OSError:
        return True


def module_folders(user: str, cwd: str) -> tuple[str, ...]:
    """Return the folders of modules that exist: the user's, then the project's, which overrides by name."""
    project = os.path.join(cwd, PROJECT_MODULES)
    trusted = (user, project) if is_trusted(project, cwd) else (user,)
    return tuple(folder for folder in trusted if os.path.isdir(folder))


def look_around(cwd: str | None, home: str, user_modules: str) -> tuple[str, tuple[str, ...]]:
    """Return the real working directory and the folders of modules.

    Raises:
        InvalidInputError: See `real_cwd`.
    """
    real = real_cwd(cwd, home)
    return real, module_folders(user_modules, real)


def find_shell(path: str) -> str | None:
    """Return the bash on PATH, or where systems have it; None where there is none."""
    return shutil.which("bash", path=path) or shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin")


def session_path(python: str) -> str:
    """Return an interpreter's path as sessions are keyed by it: its directory made real, and one name of its names.

    The last part is not followed: a virtual environment is known by where its python lies. `python3` beside a `python`
    that is the same file is that `python`: who has activated an environment and who finds it on PATH meet.
    """
    folder, name = os.path.realpath(os.path.dirname(python)), os.path.basename(python)
    usual = os.path.join(folder, "python")
    if _VERSIONED.fullmatch(name):
        with contextlib.suppress(OSError):
            if os.path.samefile(usual, os.path.join(folder, name)):
                return usual
    return os.path.join(folder, name)
