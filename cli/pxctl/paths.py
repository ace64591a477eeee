"""Where the daemon keeps its things, computed as the daemon computes it, without loading what the daemon loads.

For every environment the answer equals the daemon's; a test holds the two together. `platformdirs` is asked only where
neither PX_HOME nor the usual run directory decides, for loading it costs as much as a whole call. Nothing is created
here. CONTRACT §1 is the table. (os.path: pathlib doubles the start-up.)
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping

from pxctl.client import Failure, usage

APP = "pxd"


def find_socket(env: Mapping[str, str], *, explicit: str | None, system: bool) -> str:
    """Return the path of the control socket: `--socket`, PX_SOCKET, else `pxd.sock` in the run directory."""
    chosen = explicit or env.get("PX_SOCKET")
    return _full(chosen) if chosen else os.path.join(find_run_dir(env, system=system), "pxd.sock")


def find_run_dir(env: Mapping[str, str], *, system: bool) -> str:
    if given := _first_dir(env.get("RUNTIME_DIRECTORY")):
        return given
    home = _home(env, system=system)
    if system:
        return "/run/pxd"
    return os.path.join(home, "run") if home else _user_runtime_dir(env)


def find_log_file(env: Mapping[str, str], *, system: bool) -> str:
    if given := _first_dir(env.get("LOGS_DIRECTORY")):
        return os.path.join(given, "pxd.log")
    state = _first_dir(env.get("STATE_DIRECTORY"))
    if state is None and system:
        state = "/var/lib/pxd/state"
    elif state is None and (home := _home(env, system=system)):
        state = os.path.join(home, "state")
    elif state is None:
        import platformdirs

        state = platformdirs.user_state_dir(APP, appauthor=False)
    return os.path.join(state, "logs", "pxd.log")


def find_data(env: Mapping[str, str], *, system: bool) -> list[str]:
    """Return the folders with what is the user's (settings, tools, pipes, ledger, logs), as far as they are there."""
    if system:
        found = ["/etc/pxd", "/var/lib/pxd", "/var/log/pxd"]
    elif home := _home(env, system=False):
        found = [home]
    else:
        import platformdirs

        places = (platformdirs.user_config_dir, platformdirs.user_data_dir, platformdirs.user_state_dir)
        found = [place(APP, appauthor=False) for place in places]
    return [folder for folder in dict.fromkeys(found) if os.path.exists(folder)]


def shipped_files() -> list[str]:
    """Return the files that this very package has installed: manual pages lie in other places than man(1) looks at."""
    from importlib import metadata

    return [os.path.realpath(file.locate()) for file in metadata.files("supervisord-py") or ()]


def own_version() -> str:
    from importlib import metadata

    return metadata.version("supervisord-py")


def _full(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _home(env: Mapping[str, str], *, system: bool) -> str | None:
    home = env.get("PX_HOME")
    if home and system:
        raise usage(f"--system means /run/pxd, but PX_HOME={home} is set", "unset PX_HOME, or leave --system out")
    return _full(home) if home else None


def _first_dir(value: str | None) -> str | None:
    """Return the first of a colon-separated list of directories (systemd.exec(5), RuntimeDirectory=)."""
    first = value.split(":", 1)[0] if value else ""
    return _full(first) if first else None


def _user_runtime_dir(env: Mapping[str, str]) -> str:
    """Return the user's run directory; another user's directory of that name is never trusted."""
    usual = f"/run/user/{os.geteuid()}"
    if sys.platform == "linux" and env.get("XDG_RUNTIME_DIR", usual) == usual and _is_private(usual):
        return os.path.join(usual, APP)
    import warnings

    import platformdirs

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the daemon says what is to be said of a place under /tmp
            return platformdirs.user_runtime_dir(APP, appauthor=False)
    except (OSError, RuntimeError) as error:
        hint = "set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or PX_HOME"
        raise Failure(f"no safe runtime directory: {error}", kind="forbidden", hint=hint) from error


def _is_private(path: str) -> bool:
    """Say whether `path` is a real directory of ours with mode 0700, as XDG wants it."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700
