"""Where everything lies (CONTRACT §1), decided once from the environment and two flags; and the directories made.

What the service manager grants (RUNTIME_DIRECTORY and its like) beats everything; then PX_HOME or `--system`; then the
platform's own places. The socket alone may be moved by PX_SOCKET or `--socket`. Directories are private from their
first instant, under any umask. One that holds the socket, the lock or the ledger must be a real directory of ours: a
symbolic link or somebody else's is refused, never followed and never repaired: its owner could swap what we put there.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from supervisord_py.errors import EXIT_BAD_SETTINGS, EXIT_USAGE, BadRequestError, ConfigError, ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIVATE = 0o700
APP = "pxd"
SETTINGS_NAME = "pxd.toml"
SOCKET_NAME = "pxd.sock"
LOCK_NAME = "pxd.lock"
LEDGER_NAME = "pxd.db"

SUN_PATH_LINUX = 108
SUN_PATH_DARWIN = 104  # bytes of sockaddr_un.sun_path, including the NUL that ends it: unix(7), and sys/un.h of macOS


class Scope(StrEnum):
    """Whom a daemon works for: the user who started it, or the whole machine (`--system`)."""

    USER = "user"
    SYSTEM = "system"


class PlaceError(ConfigError):
    """A path of the daemon cannot be used as it is; asking again without a change is pointless."""

    exit_code = EXIT_BAD_SETTINGS


class ContradictionError(BadRequestError):
    """Two ways to say where things lie were given, and they disagree."""

    exit_code = EXIT_USAGE


class Paths(msgspec.Struct, frozen=True):
    """Absolute paths of one daemon."""

    config_file: Path  # `pxd.toml`; need not exist
    conf_dir: Path  # drop-in folder beside it; its `*.toml` are read in the order of their names
    tools_dir: Path  # first folder of tools; `tools new` and `tools add` write here
    pipes_dir: Path  # folder of pipes
    kernels_dir: Path  # the managed environment of kernels, and overlays
    modules_dir: Path  # the user's own modules for kernels; need not exist
    state_dir: Path  # ledger and, unless the service manager says otherwise, logs
    ledger_file: Path  # the SQLite file
    log_dir: Path  # root of the output segments
    cells_dir: Path  # complete outputs of cells
    executions_dir: Path  # outputs and private files of executions
    presets_file: Path  # models that pipes name; need not exist
    agents_file: Path  # the user's own adapters; need not exist
    run_dir: Path  # lock, and private sockets
    kernel_run_dir: Path  # connection files and sockets of kernels; short
    socket: Path  # the control socket
    lock_file: Path  # held by flock for as long as a daemon lives


class Roots(NamedTuple):
    """The four places from which all paths follow."""

    config: Path
    content: Path
    state: Path
    run: Path


def resolve_paths(
    environ: Mapping[str, str],
    *,
    scope: Scope = Scope.USER,
    config_file: str | None = None,
    socket: str | None = None,
) -> Paths:
    """Return the paths that `environ` and the flags mean. Relative ones are taken from the working directory.

    Raises ContradictionError: `--system` together with PX_HOME; PlaceError: the platform offers no runtime
    directory that is safe to use.
    """
    roots = _granted(_roots(environ, scope), environ)
    config = _absolute(config_file) if config_file else roots.config / SETTINGS_NAME
    log_dir = _first(environ, "LOGS_DIRECTORY") or roots.state / "logs"
    moved = socket or environ.get("PX_SOCKET")
    return Paths(
        config_file=config,
        conf_dir=config.parent / "conf.d",
        tools_dir=roots.content / "tools",
        pipes_dir=roots.content / "pipes",
        kernels_dir=roots.content / "kernels",
        modules_dir=config.parent / "modules",
        state_dir=roots.state,
        ledger_file=roots.state / LEDGER_NAME,
        log_dir=log_dir,
        cells_dir=roots.state / "cells",
        executions_dir=roots.state / "executions",
        presets_file=config.parent / "presets.toml",
        agents_file=config.parent / "agents.toml",
        run_dir=roots.run,
        kernel_run_dir=roots.run / "k",
        socket=_absolute(moved) if moved else roots.run / SOCKET_NAME,
        lock_file=roots.run / LOCK_NAME,
    )


def check_socket_length(
    path: Path, limit: int = SUN_PATH_LINUX if sys.platform == "linux" else SUN_PATH_DARWIN
) -> None:
    """Refuse a socket path that the kernel cannot take, before anything is started.

    Raises PlaceError: the path has `limit` bytes or more (one byte is for the NUL).
    """
    size = len(os.fsencode(path))
    if size < limit:
        return
    raise PlaceError(
        f"the socket path {path} has {size} bytes; this platform takes at most {limit - 1}",
        hint=f"set PX_SOCKET to a shorter path, for example PX_SOCKET=/tmp/pxd-{os.getuid()}.sock, for pxd and pxctl",
        setting="PX_SOCKET",
        size_bytes=size,
        limit_bytes=limit - 1,
    )


def _roots(environ: Mapping[str, str], scope: Scope) -> Roots:
    home = environ.get("PX_HOME")
    if scope is Scope.SYSTEM:
        if home:
            raise ContradictionError(
                f"--system means /etc/pxd, /var/lib/pxd and /run/pxd, but PX_HOME={home} is set",
                hint="unset PX_HOME, or leave --system out",
            )
        return Roots(Path("/etc/pxd"), Path("/var/lib/pxd"), Path("/var/lib/pxd/state"), Path("/run/pxd"))
    if home:
        root = _absolute(home)
        return Roots(root, root, root / "state", root / "run")
    return _platform_roots()


def _platform_roots() -> Roots:
    import platformdirs

    with warnings.catch_warnings():
        # The fall-back under /tmp is checked for its owner here and again when it is made; the warning helps nobody.
        warnings.simplefilter("ignore")
        try:
            run = platformdirs.user_runtime_path(APP, appauthor=False)
        except (OSError, RuntimeError) as error:
            raise PlaceError(
                f"no safe runtime directory: {error}",
                hint="set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or PX_HOME",
            ) from error
    return Roots(
        config=platformdirs.user_config_path(APP, appauthor=False),
        content=platformdirs.user_data_path(APP, appauthor=False),
        state=platformdirs.user_state_path(APP, appauthor=False),
        run=run,
    )


def _granted(roots: Roots, environ: Mapping[str, str]) -> Roots:
    return Roots(
        config=_first(environ, "CONFIGURATION_DIRECTORY") or roots.config,
        content=roots.content,
        state=_first(environ, "STATE_DIRECTORY") or roots.state,
        run=_first(environ, "RUNTIME_DIRECTORY") or roots.run,
    )


def _first(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first of the colon-separated directories in a variable that systemd sets (systemd.exec(5))."""
    first = environ.get(name, "").split(":", 1)[0]
    return _absolute(first) if first else None


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


_ALL = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


def make_places(paths: Paths) -> None:
    """Make every directory of `paths` that is not there yet.

    Raises ForbiddenError: one is a symbolic link, belongs to another user, or may not be made; PlaceError:
    something that is no directory is in the way, or the disk refuses.
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

    Raises ForbiddenError: it is a symbolic link or belongs to another user; PlaceError: it is no directory.
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
