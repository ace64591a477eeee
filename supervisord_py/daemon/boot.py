"""What the keeper is told at its birth: one JSON document in an inherited descriptor, and the words to start it with.

The keeper loads no settings and no third-party module; whatever it must know is here, as plain values.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.daemon.paths import resolve_paths
from supervisord_py.daemon.settings import Sources

if TYPE_CHECKING:
    from supervisord_py.config.settings import Settings
    from supervisord_py.daemon.paths import Paths

STOP_SECONDS = 10.0  # what an orderly stop gets at least, until the keeper kills: KILL, drained pipes, ledger closed
CONTROL_HANG_SECONDS = 30.0  # silence after which the control plane is replaced
WATCHDOG_SECONDS = 10.0  # interval at which the keeper asks the control plane for a sign of life


class Flags(msgspec.Struct, frozen=True):
    """The flags of `pxd` that the control plane and a later self need again; paths are absolute for their sake."""

    config_file: str | None = None
    socket: str | None = None
    system: bool = False
    settings: tuple[str, ...] = ()

    def words(self) -> list[str]:
        pairs = [("--config", self.config_file), ("--socket", self.socket), *(("--set", it) for it in self.settings)]
        words = [word for flag, value in pairs if value is not None for word in (flag, value)]
        return [*words, "--system"] if self.system else words

    def paths(self) -> Paths:
        return resolve_paths(os.environ, system=self.system, config_file=self.config_file, socket=self.socket)

    def sources(self, paths: Paths) -> Sources:
        return Sources(paths.config_file, paths.conf_dir, self.config_file is not None, dict(os.environ), self.settings)


class ControlOrder(msgspec.Struct, frozen=True):
    """What a control plane is started with, as JSON: flags, and its descriptors (channel, control socket, lock)."""

    flags: Flags
    fds: tuple[int, int, int] = (3, 4, 5)


def daemon_id(state_dir: Path) -> str:
    """Return the name of the daemon of this state directory: eight hex digits, the same at every start."""
    return hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:8]


def keeper_argv(
    paths: Paths,
    settings: Settings,
    flags: Flags,
    *words: str,
    lock_fd: int,
    listen_fd: int | None = None,
    socket_owned: bool = False,
) -> list[str]:
    """Return the command that becomes the keeper: no site packages, nothing of the user's environment.

    Its document lies in an inheritable descriptor, from which it can be read once. The given descriptors go over exec;
    `socket_owned`: unlink the socket file at the end.
    """
    order = msgspec.json.encode(ControlOrder(flags)).decode()
    document: dict[str, Any] = {
        "daemon_id": daemon_id(paths.state_dir),
        "run_dir": str(paths.run_dir),
        "log_dir": str(paths.log_dir),
        "socket_path": str(paths.socket),
        "socket_owned": socket_owned,
        "listen_fd": listen_fd,
        "lock_fd": lock_fd,
        "control_argv": [sys.executable, "-P", "-m", "supervisord_py.daemon.control", order],
        "pxd_argv": [sys.executable, "-P", "-m", "supervisord_py", "--foreground", *flags.words()],
        "log_segment_bytes": settings.logs.segment_bytes,
        "log_total_bytes": settings.logs.total_bytes,
        "stop_seconds": STOP_SECONDS,
        "watchdog_seconds": WATCHDOG_SECONDS,
        "control_hang_seconds": CONTROL_HANG_SECONDS,
        "backoff_initial_seconds": settings.daemon.backoff_initial_seconds,
        "backoff_max_seconds": settings.daemon.backoff_max_seconds,
    }
    # A pipe takes at least 16 KiB before a writer waits; the document has about two.
    fd, writer = os.pipe()
    os.write(writer, json.dumps(document).encode())
    os.close(writer)
    os.set_inheritable(fd, True)
    script = Path(__file__).parent.parent / "keeper" / "__main__.py"
    return [sys.executable, "-I", "-S", str(script), *words, "--boot-fd", str(fd)]
