"""Writes the service files: those under `units/`, which are for `/usr/bin/pxd`, with another
command and variables.

What the keys mean and why they have these values stands beside them.
"""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisord_py.config.settings import SECRETS
from supervisord_py.daemon.lock import LAUNCHD_SOCKET
from supervisord_py.daemon.paths import check_socket_length
from supervisord_py.daemon.settings import NOT_SETTINGS, PREFIX, Flags
from supervisord_py.errors import ConfigError
from supervisord_py.process.child_environment import DEFAULT_PATH

UNITS = Path(__file__).parent.parent / "units"
LABEL = "io.github.supervisord-py.pxd"
_USUAL_FOLDERS = (
    "/opt/homebrew/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin",
    "/bin",
)  # fmt: skip
_PLACES = ("PX_HOME", "PX_SOCKET", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def service_file(which: str, flags: Flags) -> str:
    """Return the text of `pxd --print-unit WHICH`, which runs this very installation as this
    call would.
    """
    path = flags.paths().socket
    check_socket_length(path)
    variables = carried(os.environ, system=flags.system)
    if which == "systemd-socket":
        return systemd_socket(
            str(path) if flags.socket or variables.keys() & {"PX_HOME", "PX_SOCKET"} else None
        )
    variables["PATH"] = service_path(os.environ.get("PATH", ""), system=flags.system)
    found = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "pxd" else None
    start = [os.path.abspath(found)] if found else [sys.executable, "-P", "-m", "supervisord_py"]
    command = [*start, "--foreground", *flags.words()]
    if which == "systemd":
        return systemd_unit(command, variables, system=flags.system)
    socket = str(path) if which == "launchd-socket" else None
    return launchd_plist(command, variables, system=flags.system, socket=socket)


def carried(environ: Mapping[str, str], *, system: bool) -> dict[str, str]:
    """Return the variables without which a service would be another daemon.

    Raises ConfigError: one is a secret.
    """
    places = [
        name for name in _PLACES if environ.get(name) and not (system and name.startswith("XDG_"))
    ]
    kept = {name: os.path.abspath(os.path.expanduser(environ[name])) for name in places}
    secrets = {f"{PREFIX}{section}__{name}".upper() for section, name in SECRETS}
    for name in sorted(environ):
        if name in secrets:
            detail = f"{name} is a secret, and everybody may read a service file"
            raise ConfigError(detail, hint="put it into pxd.toml, and unset it")
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            kept[name] = environ[name]
    return kept


def service_path(search_path: str, *, system: bool) -> str:
    """Return the PATH of a service: what the user who installs it finds, its tools and agents find,
    too.

    Service managers start a service with a short one. The machine's daemon, which is root's, gets
    only folders that nobody but root may write to.
    """
    folders: list[str] = []
    for folder in (*search_path.split(os.pathsep), *_USUAL_FOLDERS):
        is_usable = os.path.isabs(folder) and os.path.isdir(folder)
        if is_usable and folder not in folders and (not system or _is_roots(folder)):
            folders.append(folder)
    return os.pathsep.join(folders) or DEFAULT_PATH


def _is_roots(folder: str) -> bool:
    status = os.stat(folder)
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def systemd_unit(command: Sequence[str], variables: Mapping[str, str], *, system: bool) -> str:
    """Return the systemd unit that runs `command` (absolute program first)."""
    text = (UNITS / ("pxd.service" if system else "pxd-user.service")).read_text()
    if "PX_HOME" in variables:  # which a granted directory would beat
        text = re.sub(
            "^(RuntimeDirectory|# The socket's directory).*\n", "", text, flags=re.MULTILINE
        )
    given = (_systemd_word(f"{name}={value}", dollar="$") for name, value in variables.items())
    text = text.replace("UMask=", "".join(f"Environment={word}\n" for word in given) + "UMask=")
    words = " ".join(map(_systemd_word, command))
    return re.sub("^ExecStart=.*", lambda _: f"ExecStart={words}", text, flags=re.MULTILINE)


def systemd_socket(path: str | None) -> str:
    """Return the socket unit that starts the service when somebody connects; None is the usual
    path.
    """
    text = (UNITS / "pxd.socket").read_text()
    return text if path is None else text.replace("%t/pxd/pxd.sock", path.replace("%", "%%"))


def launchd_plist(
    command: Sequence[str], variables: Mapping[str, str], *, system: bool, socket: str | None = None
) -> str:
    """Return the property list that runs `command`; with `socket`, a path, once somebody
    connects there.
    """
    job = plistlib.loads((UNITS / f"{LABEL}.plist").read_bytes())
    job["ProgramArguments"] = list(command)
    job["EnvironmentVariables"] |= variables
    if system:
        job["StandardErrorPath"] = "/var/log/pxd.log"
    if socket is not None:  # SuccessfulExit would start it at load
        job |= {"RunAtLoad": False, "KeepAlive": {"Crashed": True}}
        job["Sockets"] = {
            LAUNCHD_SOCKET: {"SockPathName": socket, "SockPathMode": 0o600, "SockType": "stream"}
        }
    return plistlib.dumps(job, sort_keys=False).decode()


def _systemd_word(word: str, dollar: str = "$$") -> str:
    """Quote one word (systemd.service(5), COMMAND LINES): `%` is doubled, `$` in ExecStart=
    only, blanks quoted.
    """
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "%": "%%", "$": dollar}
    escaped = "".join(escapes.get(letter, letter) for letter in word)
    return f'"{escaped}"' if not word or any(letter in word for letter in " \t\n'\";") else escaped
