"""Where the daemon keeps its things, computed as the daemon computes it, without loading what the daemon loads.

Law: for every environment the answer equals that of `platformdirs` (app `pxd`, no author), which the daemon uses; a
test holds the two together. Nothing is created here and nothing is warned about. CONTRACT §1 is the table.
"""

from __future__ import annotations

import os
import stat
import sys

from pxctl.failure import PERMISSION, USAGE, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

APP = "pxd"
SOCKET_NAME = "pxd.sock"
_RUNTIME_MODE = 0o700


class Places:
    """The directories and files of one daemon; absolute paths."""

    __slots__ = ("config_file", "log_dir", "run_dir", "socket", "state_dir", "tools_dir")

    def __init__(
        self, *, config_file: str, tools_dir: str, state_dir: str, log_dir: str, run_dir: str, socket: str
    ) -> None:
        self.config_file = config_file
        self.tools_dir = tools_dir
        self.state_dir = state_dir
        self.log_dir = log_dir
        self.run_dir = run_dir
        self.socket = socket

    @property
    def log_file(self) -> str:
        """Where a daemon that the client started writes its own log."""
        return os.path.join(self.log_dir, "pxd.log")


def find_socket(env: Mapping[str, str], *, explicit: str | None, system: bool) -> str:
    """Return the path of the control socket: `--socket`, PX_SOCKET, else `pxd.sock` in the run directory."""
    chosen = explicit or env.get("PX_SOCKET")
    return _full(chosen) if chosen else os.path.join(find_run_dir(env, system=system), SOCKET_NAME)


def find_run_dir(env: Mapping[str, str], *, system: bool) -> str:
    """Return the directory of socket and lock."""
    if given := _first_dir(env.get("RUNTIME_DIRECTORY")):
        return given
    home = _home(env, system=system)
    if system:
        return "/run/pxd"
    if home:
        return os.path.join(home, "run")
    return _user_runtime_dir(env)


def find_places(env: Mapping[str, str], *, explicit_socket: str | None, system: bool) -> Places:
    """Return every place of the daemon that this environment and these flags mean."""
    socket = find_socket(env, explicit=explicit_socket, system=system)
    run_dir = find_run_dir(env, system=system)
    state = _first_dir(env.get("STATE_DIRECTORY"))
    config = _first_dir(env.get("CONFIGURATION_DIRECTORY"))
    home = _home(env, system=system)
    if system:
        defaults = ("/etc/pxd", "/var/lib/pxd/tools", "/var/lib/pxd/state")
    elif home:
        defaults = (home, os.path.join(home, "tools"), os.path.join(home, "state"))
    else:
        defaults = (_user_dir(env, "CONFIG"), os.path.join(_user_dir(env, "DATA"), "tools"), _user_dir(env, "STATE"))
    return Places(
        config_file=os.path.join(config or defaults[0], "pxd.toml"),
        tools_dir=defaults[1],
        state_dir=state or defaults[2],
        log_dir=_first_dir(env.get("LOGS_DIRECTORY")) or os.path.join(state or defaults[2], "logs"),
        run_dir=run_dir,
        socket=socket,
    )


def _full(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _home(env: Mapping[str, str], *, system: bool) -> str | None:
    home = env.get("PX_HOME")
    if home and system:
        raise Failure(
            f"--system means /run/pxd, but PX_HOME={home} is set",
            kind="usage",
            hint="unset PX_HOME, or leave --system out",
            exit_code=USAGE,
        )
    return _full(home) if home else None


def _first_dir(value: str | None) -> str | None:
    """Return the first of a colon-separated list of directories (systemd.exec(5), RuntimeDirectory=)."""
    first = value.split(":", 1)[0] if value else ""
    return _full(first) if first else None


_XDG_FALLBACKS = {"CONFIG": "~/.config", "DATA": "~/.local/share", "STATE": "~/.local/state"}


def _user_dir(env: Mapping[str, str], what: str) -> str:
    xdg = _absolute(env.get(f"XDG_{what}_HOME"))
    fallback = "~/Library/Application Support" if sys.platform == "darwin" else _XDG_FALLBACKS[what]
    return os.path.join(xdg or _expand_home(env, fallback), APP)


def _user_runtime_dir(env: Mapping[str, str]) -> str:
    xdg = _absolute(env.get("XDG_RUNTIME_DIR"))
    usable = xdg is not None and _runtime_mode(xdg) in {_PRIVATE, _MISSING}
    if sys.platform == "darwin":
        return os.path.join(xdg if xdg and usable else _expand_home(env, "~/Library/Caches/TemporaryItems"), APP)
    if xdg and usable and _is_below_safe_parents(xdg):
        return os.path.join(xdg, APP)
    path = f"/run/user/{os.geteuid()}"
    if _runtime_mode(path) != _PRIVATE:
        path = _own_temp_dir(env)
    return os.path.join(path, APP)


def _own_temp_dir(env: Mapping[str, str]) -> str:
    """Return the last resort below the temporary directory; another user's directory of that name is never trusted."""
    path = os.path.join(_temp_dir(env), f"runtime-{os.geteuid()}")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return path
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Failure(
            f"no safe runtime directory: {path} is not a directory of uid {os.geteuid()}",
            kind="forbidden",
            hint="set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or PX_HOME",
            exit_code=PERMISSION,
        )
    return path


def _absolute(path: str | None) -> str | None:
    return path if path and path.startswith("/") else None


def _expand_home(env: Mapping[str, str], path: str) -> str:
    home = env.get("HOME")
    if home is None or not home.startswith("/"):
        import pwd

        home = pwd.getpwuid(os.getuid()).pw_dir
    return home.rstrip("/") + path[1:]


_PRIVATE, _MISSING, _UNUSABLE = "private", "missing", "unusable"


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _runtime_mode(path: str) -> str:
    """Say whether `path` is a real directory of ours with mode 0700, as the XDG specification wants it."""
    try:
        found = os.lstat("/" + "/".join(_parts(path)))
    except FileNotFoundError:
        return _MISSING
    except OSError:
        return _UNUSABLE
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return _PRIVATE if mine and found.st_mode & 0o777 == _RUNTIME_MODE else _UNUSABLE


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
    for path in [*wanted, "/tmp", "/var/tmp", "/usr/tmp"]:  # noqa: S108 - the list of tempfile
        path = os.path.abspath(path)  # noqa: PLW2901 - as tempfile normalises each candidate
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return path
    return os.getcwd()
