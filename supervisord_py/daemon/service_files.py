"""Writes the service files: the systemd unit and the launchd property list. Pure text out of a command.

What the keys mean and why they have these values stands beside them. The files under `units/` are what this module
gives for `/usr/bin/pxd`, and a test holds the two together.
"""

from __future__ import annotations

import os
import plistlib
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
# Bad settings (78) and a second daemon (8) do not get better by trying again.
RestartPreventExitStatus=78 8
TimeoutStartSec=60
# Above the longest orderly stop of all children.
TimeoutStopSec={stop}
# The daemon alone is told to stop; what is left when it has exited is killed.
KillMode=mixed
# Every child gets a group of its own below this unit's.
Delegate=yes
# One child out of memory is that child's end, not the daemon's.
OOMPolicy=continue
RuntimeDirectory=pxd
RuntimeDirectoryMode=0700
# The socket's directory stays while the daemon restarts: clients find it again.
RuntimeDirectoryPreserve=restart
{state}UMask=0077

[Install]
WantedBy={target}
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


def systemd_unit(command: Sequence[str], *, system: bool) -> str:
    """Return the systemd unit that runs `command` (absolute program first)."""
    return _UNIT.format(
        command=" ".join(_systemd_word(word) for word in command),
        order="After=network.target\n" if system else "",
        state=_SYSTEM_STATE if system else _USER_STATE,
        stop=STOP_SECONDS,
        target="multi-user.target" if system else "default.target",
    )


def launchd_plist(command: Sequence[str], *, system: bool) -> str:
    """Return the property list that runs `command` as an agent of the user, or as a daemon of the machine."""
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
        },
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "Umask": 0o077,
    }
    if system:
        job["StandardErrorPath"] = "/var/log/pxd.log"
    return plistlib.dumps(job, sort_keys=False).decode()


def own_command(program: str, flags: Sequence[str]) -> list[str]:
    """Return the absolute command by which this very installation is started again."""
    found = shutil.which(program) if os.path.basename(program) == "pxd" else None
    start = [os.path.abspath(found)] if found else [sys.executable, "-P", "-m", "supervisord_py"]
    return [*start, "--foreground", *flags]


def _systemd_word(word: str) -> str:
    """Quote one word of ExecStart= (systemd.service(5), COMMAND LINES): `%` and `$` are doubled, blanks quoted."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not word or any(letter in word for letter in " \t'\";") else escaped
