"""Writes the service files: the systemd units and the launchd property list. Pure text out of a command and variables.

What the keys mean and why they have these values stands beside them. The files under `units/` are what this module
gives for `/usr/bin/pxd`, and a test holds the two together.
"""

from __future__ import annotations

import os
import plistlib
import shutil
import sys
from typing import TYPE_CHECKING

from supervisord_py.config.settings import SECRETS
from supervisord_py.daemon.lock import LAUNCHD_SOCKET
from supervisord_py.daemon.settings import NOT_SETTINGS, PREFIX
from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LABEL = "io.github.supervisord-py.pxd"
STOP_SECONDS = 90  # longest orderly stop before the service manager kills: far above `daemon.stop_seconds`

LAUNCHD_THROTTLE_SECONDS = 30
"""launchd knows no exit code that ends restarts: a broken configuration is tried again this slowly, for ever."""

_UNIT = """\
[Unit]
Description=supervisord_py: holds warm tools, kernels and agents
Documentation=man:pxd(8)
{order}StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec=30
Restart=on-failure
RestartSec=1
# Bad settings (78), a second daemon (8) and somebody else's directory (6) do not get better by trying again.
RestartPreventExitStatus=78 8 6
TimeoutStartSec=60
# Above the longest orderly stop of all children.
TimeoutStopSec={stop}
# The daemon alone is told to stop; what is left when it has exited is killed.
KillMode=mixed
# Every child gets a group of its own below this unit's.
Delegate=yes
# One child out of memory is that child's end, not the daemon's.
OOMPolicy=continue
{runtime}{state}{environment}UMask=0077

[Install]
WantedBy={target}
"""

_RUNTIME = """\
RuntimeDirectory=pxd
RuntimeDirectoryMode=0700
# The socket's directory stays without the daemon: clients wait at a socket there that systemd holds.
RuntimeDirectoryPreserve=yes
"""

_SYSTEM_STATE = """\
StateDirectory=pxd/state
StateDirectoryMode=0700
LogsDirectory=pxd
LogsDirectoryMode=0700
"""

_USER_STATE = """\
# No StateDirectory=: where it lies for a user differs between versions of systemd, and the ledger must not move.
"""


_SOCKET = """\
[Unit]
Description=The socket of supervisord_py: pxd starts when somebody connects
Documentation=man:pxd(8)

[Socket]
ListenStream={path}
SocketMode=0600
DirectoryMode=0700
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


_PLACES = ("PX_HOME", "PX_SOCKET", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def carried(environ: Mapping[str, str], *, system: bool) -> dict[str, str]:
    """Return the variables without which a service would be another daemon than this call's: places and settings.

    Raises ConfigError: one is a secret, which everybody could read in a service file.
    """
    places = [name for name in _PLACES if environ.get(name) and not (system and name.startswith("XDG_"))]
    kept = {name: os.path.abspath(os.path.expanduser(environ[name])) for name in places}
    secrets = {f"{PREFIX}{section}__{name}".upper() for section, name in SECRETS}
    for name in sorted(environ):
        if name in secrets:
            raise ConfigError(
                f"{name} is a secret, and everybody may read a service file", hint="put it into pxd.toml, and unset it"
            )
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            kept[name] = environ[name]
    return kept


def systemd_unit(command: Sequence[str], variables: Mapping[str, str], *, system: bool) -> str:
    """Return the systemd unit that runs `command` (absolute program first)."""
    words = (_systemd_word(f"{name}={value}", dollar="$") for name, value in variables.items())
    return _UNIT.format(
        command=" ".join(_systemd_word(word) for word in command),
        order="After=network.target\n" if system else "",
        runtime="" if "PX_HOME" in variables else _RUNTIME,  # a granted directory would beat PX_HOME
        state=_SYSTEM_STATE if system else _USER_STATE,
        environment="".join(f"Environment={word}\n" for word in words),
        stop=STOP_SECONDS,
        target="multi-user.target" if system else "default.target",
    )


def systemd_socket(path: str | None) -> str:
    """Return the socket unit that starts the service when somebody connects; None is the usual path."""
    return _SOCKET.format(path="%t/pxd/pxd.sock" if path is None else path.replace("%", "%%"))


def launchd_plist(
    command: Sequence[str], variables: Mapping[str, str], *, system: bool, socket: str | None = None
) -> str:
    """Return the property list that runs `command` as an agent of the user, or as a daemon of the machine.

    With `socket`, a path, launchd listens there and starts it when somebody connects.
    """
    job: dict[str, object] = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": LAUNCHD_THROTTLE_SECONDS,
        "ExitTimeOut": STOP_SECONDS,
        "ProcessType": "Standard",
        "EnvironmentVariables": {
            "PATH": "/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LC_ALL": "en_US.UTF-8",
            **variables,
        },
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "Umask": 0o077,
    }
    if system:
        job["StandardErrorPath"] = "/var/log/pxd.log"
    if socket is not None:  # SuccessfulExit would start it at load
        job |= {"RunAtLoad": False, "KeepAlive": {"Crashed": True}}
        job["Sockets"] = {LAUNCHD_SOCKET: {"SockPathName": socket, "SockPathMode": 0o600, "SockType": "stream"}}
    return plistlib.dumps(job, sort_keys=False).decode()


def own_command(program: str, flags: Sequence[str]) -> list[str]:
    """Return the absolute command by which this very installation is started again."""
    found = shutil.which(program) if os.path.basename(program) == "pxd" else None
    start = [os.path.abspath(found)] if found else [sys.executable, "-P", "-m", "supervisord_py"]
    return [*start, "--foreground", *flags]


def _systemd_word(word: str, dollar: str = "$$") -> str:
    """Quote one word (systemd.service(5), COMMAND LINES): `%` is doubled, `$` in ExecStart= only, blanks quoted."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "%": "%%", "$": dollar}
    escaped = "".join(escapes.get(letter, letter) for letter in word)
    return f'"{escaped}"' if not word or any(letter in word for letter in " \t\n'\";") else escaped
