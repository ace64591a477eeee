"""Where the daemon keeps its things, computed as the daemon computes it, without loading what the daemon loads.

For every environment the answer equals that of `platformdirs` (app `pxd`, no author), which the daemon uses; a test
holds the two together. Nothing is created here. CONTRACT §1 is the table. (os.path: pathlib doubles the start-up.)
"""

from __future__ import annotations

import os
import stat
import sys

from pxctl.client import PERMISSION, Failure, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

APP = "pxd"


class Places:
    """The directories and files of one daemon; absolute paths."""

    __slots__ = ("config_file", "log_dir", "run_dir", "socket", "state_dir", "tools_dir")

    def __init__(
        self, run_dir: str, socket: str, config_dir: str, tools_dir: str, state_dir: str, log_dir: str
    ) -> None:
        self.run_dir = run_dir
        self.socket = socket
        self.config_file = os.path.join(config_dir, "pxd.toml")
        self.tools_dir = tools_dir
        self.state_dir = state_dir
        self.log_dir = log_dir

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
        config, data, state = (_user_dir(env, what) for what in ("CONFIG", "DATA", "STATE"))
    state = _first_dir(env.get("STATE_DIRECTORY")) or state
    return Places(
        run_dir=find_run_dir(env, system=system),
        socket=find_socket(env, explicit=explicit_socket, system=system),
        config_dir=_first_dir(env.get("CONFIGURATION_DIRECTORY")) or config,
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


def _user_dir(env: Mapping[str, str], what: str) -> str:
    below_home = {"CONFIG": "~/.config", "DATA": "~/.local/share", "STATE": "~/.local/state"}[what]
    fallback = "~/Library/Application Support" if sys.platform == "darwin" else below_home
    return os.path.join(_absolute(env.get(f"XDG_{what}_HOME")) or _expand_home(env, fallback), APP)


def _user_runtime_dir(env: Mapping[str, str]) -> str:
    """Return the user's run directory; another user's directory of that name is never trusted."""
    xdg = _absolute(env.get("XDG_RUNTIME_DIR"))
    usable = xdg is not None and _is_private(xdg) in {True, None}
    if sys.platform == "darwin":
        return os.path.join(xdg if xdg and usable else _expand_home(env, "~/Library/Caches/TemporaryItems"), APP)
    if xdg and usable and _is_below_safe_parents(xdg):
        return os.path.join(xdg, APP)
    path = f"/run/user/{os.geteuid()}"
    if _is_private(path):
        return os.path.join(path, APP)
    path = os.path.join(_temp_dir(env), f"runtime-{os.geteuid()}")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return os.path.join(path, APP)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        detail = f"no safe runtime directory: {path} is not a directory of uid {os.geteuid()}"
        hint = "set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or PX_HOME"
        raise Failure(detail, kind="forbidden", hint=hint, exit_code=PERMISSION)
    return os.path.join(path, APP)


def _absolute(path: str | None) -> str | None:
    return path if path and path.startswith("/") else None


def _expand_home(env: Mapping[str, str], path: str) -> str:
    home = env.get("HOME")
    if home is None or not home.startswith("/"):
        import pwd

        home = pwd.getpwuid(os.getuid()).pw_dir
    return home.rstrip("/") + path[1:]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _is_private(path: str) -> bool | None:
    """Say whether `path` is a real directory of ours with mode 0700, as XDG wants it; None: missing."""
    try:
        found = os.lstat("/" + "/".join(_parts(path)))
    except FileNotFoundError:
        return None
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700


def _is_below_safe_parents(path: str) -> bool:
    """Say whether no other user can replace a directory above `path`: shared ones are sticky, what follows is ours."""
    shared = False
    parts = _parts(path)[:-1]
    for depth in range(len(parts) + 1):
        parent = "/" + "/".join(parts[:depth])
        try:
            if shared and os.lstat(parent).st_uid not in {0, os.geteuid()}:
                return False
            mode = os.stat(parent).st_mode
        except OSError:
            return True
        shared = bool(mode & stat.S_IWOTH)
        if shared and not mode & stat.S_ISVTX:
            return False
    return True


def _temp_dir(env: Mapping[str, str]) -> str:
    """Return what `tempfile.gettempdir()` returns, judged by access(2) instead of by writing a file."""
    wanted = [env[name] for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)]
    for path in map(os.path.abspath, [*wanted, "/tmp", "/var/tmp", "/usr/tmp"]):  # noqa: S108 - the list of tempfile
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return path
    return os.getcwd()
