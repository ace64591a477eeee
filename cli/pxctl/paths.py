"""Where the daemon keeps its things, computed as the daemon computes it, without loading what the
daemon loads.

For every environment the answer equals the daemon's; a test holds the two together. `platformdirs`
is asked only where neither PX_HOME nor the usual run directory decides, for loading it costs as
much as a whole call. Nothing is created here. CONTRACT §1 is the table. (os.path: pathlib doubles
the start-up.)
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Mapping

from pxctl.client import Failure, usage

APP = "pxd"
_MACHINES_RUN_DIR = "/run/pxd"
MACHINES_SOCKET = f"{_MACHINES_RUN_DIR}/pxd.sock"
Env = Mapping[str, str]


def find_socket(env: Env, *, explicit: str | None, system: bool) -> str:
    """Return the path of the control socket: `--socket`, PX_SOCKET, else `pxd.sock` in the run
    directory.
    """
    chosen = explicit or env.get("PX_SOCKET")
    return _full(chosen) if chosen else os.path.join(find_run_dir(env, system=system), "pxd.sock")


def find_run_dir(env: Env, *, system: bool) -> str:
    return _place(
        env,
        "RUNTIME_DIRECTORY",
        _MACHINES_RUN_DIR if system else None,
        "run",
        lambda: _user_runtime_dir(env),
    )


def find_log_file(env: Env, *, system: bool) -> str:
    if given := _granted(env, "LOGS_DIRECTORY"):
        return os.path.join(given, "pxd.log")
    machines = "/var/lib/pxd/state" if system else None
    state = _place(env, "STATE_DIRECTORY", machines, "state", lambda: _user_dir("state"))
    return os.path.join(state, "logs", "pxd.log")


def find_data(env: Env, *, system: bool) -> list[str]:
    """Return the folders with what is the user's (settings, tools, pipes, ledger, logs), as far
    as they are there.
    """
    found = ["/etc/pxd", "/var/lib/pxd", "/var/log/pxd"]
    if not system:
        home = env.get("PX_HOME")
        found = [_full(home)] if home else list(map(_user_dir, ("config", "data", "state")))
    return [folder for folder in dict.fromkeys(found) if os.path.exists(folder)]


def shipped_files() -> list[str]:
    """Return the files that this very package has installed."""
    from importlib import metadata

    return [os.path.realpath(file.locate()) for file in metadata.files("supervisord-py") or ()]


def own_version() -> str:
    from importlib import metadata

    return metadata.version("supervisord-py")


def _full(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _place(env: Env, grant: str, machines: str | None, own: str, users: Callable[[], str]) -> str:
    """Return a directory: systemd's grant, else the machine's, else the one under PX_HOME, else
    the user's.
    """
    home = env.get("PX_HOME")
    if given := _granted(env, grant):
        return given
    if home and machines:
        raise usage(
            f"--system means {machines}, but PX_HOME={home} is set",
            "unset PX_HOME, or leave --system out",
        )
    return machines or (os.path.join(_full(home), own) if home else users())


def _granted(env: Env, name: str) -> str | None:
    """Return the first of a colon-separated list of directories (systemd.exec(5),
    RuntimeDirectory=).
    """
    first = env.get(name, "").split(":", 1)[0]
    return _full(first) if first else None


def _user_dir(kind: str) -> str:
    import platformdirs

    return str(getattr(platformdirs, f"user_{kind}_dir")(APP, appauthor=False))


def _user_runtime_dir(env: Env) -> str:
    """Return the user's run directory; another user's directory of that name is never trusted."""
    usual = f"/run/user/{os.geteuid()}"
    if sys.platform == "linux" and env.get("XDG_RUNTIME_DIR", usual) == usual:
        with contextlib.suppress(OSError):
            found = os.lstat(usual)
            if (
                stat.S_ISDIR(found.st_mode)
                and found.st_uid == os.geteuid()
                and found.st_mode & 0o777 == 0o700
            ):
                return os.path.join(usual, APP)
    import warnings

    try:
        with warnings.catch_warnings():
            # the daemon says what is to be said of a place under /tmp
            warnings.simplefilter("ignore")
            return _user_dir("runtime")
    except (OSError, RuntimeError) as error:
        hint = "set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or PX_HOME"
        raise Failure(f"no safe runtime directory: {error}", kind="forbidden", hint=hint) from error
