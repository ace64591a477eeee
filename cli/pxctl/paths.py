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
from typing import NamedTuple

from pxctl.client import Failure, usage

APP = "pxd"


class Places(NamedTuple):
    """The directories and files of one daemon; absolute paths."""

    run_dir: str
    socket: str
    config_file: str
    tools_dir: str
    state_dir: str
    log_dir: str

    @property
    def log_file(self) -> str:
        """Where a daemon that the client started writes its own log."""
        return os.path.join(self.log_dir, "pxd.log")


def find_socket(env: Mapping[str, str], *, explicit: str | None, system: bool) -> str:
    """Return the path of the control socket: `--socket`, PX_SOCKET, else `pxd.sock` in the run directory."""
    chosen = explicit or env.get("PX_SOCKET")
    return _full(chosen) if chosen else os.path.join(find_run_dir(env, system=system), "pxd.sock")


def find_run_dir(env: Mapping[str, str], *, system: bool) -> str:
    """Return the directory of socket and lock."""
    if given := _first_dir(env.get("RUNTIME_DIRECTORY")):
        return given
    home = _home(env, system=system)
    if system:
        return "/run/pxd"
    return os.path.join(home, "run") if home else _user_runtime_dir(env)


def find_places(env: Mapping[str, str], *, explicit_socket: str | None, system: bool) -> Places:
    """Return every place of the daemon that this environment and these flags mean."""
    home = _home(env, system=system)
    if system:
        config, data, state = "/etc/pxd", "/var/lib/pxd", "/var/lib/pxd/state"
    elif home:
        config, data, state = home, home, os.path.join(home, "state")
    else:
        import platformdirs

        lookups = (platformdirs.user_config_dir, platformdirs.user_data_dir, platformdirs.user_state_dir)
        config, data, state = (lookup(APP, appauthor=False) for lookup in lookups)
    state = _first_dir(env.get("STATE_DIRECTORY")) or state
    return Places(
        run_dir=find_run_dir(env, system=system),
        socket=find_socket(env, explicit=explicit_socket, system=system),
        config_file=os.path.join(_first_dir(env.get("CONFIGURATION_DIRECTORY")) or config, "pxd.toml"),
        tools_dir=os.path.join(data, "tools"),
        state_dir=state,
        log_dir=_first_dir(env.get("LOGS_DIRECTORY")) or os.path.join(state, "logs"),
    )


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
