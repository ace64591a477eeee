"""Where everything lies (CONTRACT §1), decided once from the environment and two flags; and the
directories made.

What the service manager grants (RUNTIME_DIRECTORY and its like) beats everything; then PX_HOME or
`--system`; then the platform's own places. A directory that holds the socket, the lock or the
ledger must be a real one of ours: a symbolic link or somebody else's is refused, never followed and
never repaired: its owner could swap what we put there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisord_py.errors import EXIT_BAD_SETTINGS, BadRequestError, ConfigError, ForbiddenError

PRIVATE = 0o700
ELSEWHERE = (
    "remove it or choose another place (PX_HOME, XDG_RUNTIME_DIR); look first: ls -ld {path}"
)
# of sockaddr_un.sun_path, but for the NUL that ends it
SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


class PlaceError(ConfigError):
    """A path of the daemon cannot be used as it is; asking again without a change is pointless."""

    exit_code = EXIT_BAD_SETTINGS


class Paths(msgspec.Struct, frozen=True):
    """Absolute paths of one daemon."""

    # need not exist; beside it may be conf.d, presets.toml, agents.toml and modules
    config_file: Path
    tools_dir: Path  # first folder of tools; `tools new` and `tools add` write here
    pipes_dir: Path
    kernels_dir: Path  # the managed environment of kernels, and overlays
    state_dir: Path
    ledger_file: Path
    log_dir: Path  # root of the output segments
    cells_dir: Path  # complete outputs of cells
    executions_dir: Path  # outputs and private files of executions
    run_dir: Path  # lock, and private sockets; short
    socket: Path
    lock_file: Path  # held by flock for as long as a daemon lives

    @property
    def config_dir(self) -> Path:
        return self.config_file.parent


def resolve_paths(
    environ: Mapping[str, str],
    *,
    system: bool = False,
    config_file: str | None = None,
    socket: str | None = None,
) -> Paths:
    """Return the paths that `environ` and the flags mean. Relative ones are taken from the working
    directory.

    Raises BadRequestError: `--system` together with PX_HOME; PlaceError: the platform offers no
    runtime directory that is safe to use.
    """
    home = environ.get("PX_HOME")
    if system and home:
        detail = f"--system means /etc/pxd, /var/lib/pxd and /run/pxd, but PX_HOME={home} is set"
        raise BadRequestError(detail, hint="unset PX_HOME, or leave --system out")
    if system:
        folders = (
            Path("/etc/pxd"),
            Path("/var/lib/pxd"),
            Path("/var/lib/pxd/state"),
            Path("/run/pxd"),
        )
    elif home:
        root = absolute(home)
        folders = (root, root, root / "state", root / "run")
    else:
        folders = _platform_folders()

    def granted(name: str, otherwise: Path) -> Path:
        first = environ.get(name, "").split(":", 1)[0]  # of colon-separated ones (systemd.exec(5))
        return absolute(first) if first else otherwise

    state, run = granted("STATE_DIRECTORY", folders[2]), granted("RUNTIME_DIRECTORY", folders[3])
    config = (
        absolute(config_file)
        if config_file
        else granted("CONFIGURATION_DIRECTORY", folders[0]) / "pxd.toml"
    )
    moved = socket or environ.get("PX_SOCKET")
    return Paths(
        config_file=config,
        tools_dir=folders[1] / "tools",
        pipes_dir=folders[1] / "pipes",
        kernels_dir=folders[1] / "kernels",
        state_dir=state,
        ledger_file=state / "pxd.db",
        log_dir=granted("LOGS_DIRECTORY", state / "logs"),
        cells_dir=state / "cells",
        executions_dir=state / "executions",
        run_dir=run,
        socket=absolute(moved) if moved else run / "pxd.sock",
        lock_file=run / "pxd.lock",
    )


def _platform_folders() -> tuple[Path, Path, Path, Path]:
    import platformdirs

    with warnings.catch_warnings():  # of the fall-back under /tmp, whose owner is checked
        warnings.simplefilter("ignore")
        try:
            run = platformdirs.user_runtime_path("pxd", appauthor=False)
        except (OSError, RuntimeError) as error:
            hint = "set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or PX_HOME"
            raise PlaceError(f"no safe runtime directory: {error}", hint=hint) from error
    others = (
        platformdirs.user_config_path,
        platformdirs.user_data_path,
        platformdirs.user_state_path,
    )
    config, content, state = (place("pxd", appauthor=False) for place in others)
    return config, content, state, run


def absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


def check_socket_length(path: Path) -> None:
    """Refuse, with PlaceError, a socket path that is too long for this platform."""
    if (size := len(os.fsencode(path))) > SOCKET_PATH_BYTES:
        detail = (
            f"the socket path {path} has {size} bytes; this platform takes at most "
            f"{SOCKET_PATH_BYTES}"
        )
        hint = (
            f"set PX_SOCKET to a shorter path, like /tmp/pxd-{os.getuid()}.sock, for pxd and pxctl"
        )
        raise PlaceError(
            detail, hint=hint, setting="PX_SOCKET", size_bytes=size, limit_bytes=SOCKET_PATH_BYTES
        )


def make_places(paths: Paths) -> None:
    """Make every directory of `paths` that is not there yet, under a umask that closes them to
    others.

    Raises ForbiddenError: one is a link, somebody else's, or may not be made; PlaceError: it cannot
    be.
    """
    guarded = [paths.run_dir, paths.state_dir, paths.log_dir, paths.run_dir / "k", paths.cells_dir]
    guarded += [paths.executions_dir, paths.kernels_dir]
    # A socket may be put where others live too (/tmp), and folders of tools may be links to a
    # checkout.
    for path in (*guarded, paths.socket.parent, paths.tools_dir, paths.pipes_dir):
        try:
            with contextlib.suppress(FileExistsError):  # a link that leads nowhere
                path.mkdir(PRIVATE, parents=True, exist_ok=True)
        except OSError as error:
            raise _refusal(path, error) from error
        if path in guarded:
            guard_directory(path)


def guard_directory(path: Path) -> None:
    """Check that `path` is a real directory of ours and close it to everybody else; errors as of
    `make_places`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        seen = os.fstat(fd)
        if seen.st_uid != os.geteuid():
            detail = (
                f"{path} belongs to uid {seen.st_uid}, not to uid {os.geteuid()} that runs this "
                "daemon"
            )
            raise ForbiddenError(detail, hint=ELSEWHERE.format(path=path))
        if seen.st_mode & 0o777 != PRIVATE:
            os.fchmod(fd, PRIVATE)
    finally:
        os.close(fd)


def _refusal(path: Path, error: OSError) -> ForbiddenError | PlaceError:
    hint = ELSEWHERE.format(path=f"{path} {path.parent}")
    if path.is_symlink():
        return ForbiddenError(
            f"{path} is a symbolic link; the daemon's own directories must be real ones", hint=hint
        )
    kind = ForbiddenError if isinstance(error, PermissionError) else PlaceError
    return kind(f"cannot use {path} as a directory: {error.strerror}", hint=hint)
