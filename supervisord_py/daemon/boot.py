"""What the keeper is told at its birth: one JSON document in an inherited descriptor, and the words to start it with.

The keeper loads no settings and no third-party module; whatever it must know is here, as plain values.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisord_py.daemon.paths import Scope, resolve_paths
from supervisord_py.daemon.settings import load_settings
from supervisord_py.daemon.sources import Sources

if TYPE_CHECKING:
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.schema import Settings
    from supervisord_py.daemon.settings import Loaded

STOP_MARGIN_SECONDS = 3.0
"""What an orderly stop gets beyond the grace of tools and kernels: KILL, drained pipes, ledger closed."""
WATCHDOG_SECONDS = 10.0
"""Interval at which the keeper asks the control plane for a sign of life."""

_CONTROL_FDS = ("--channel-fd", "3", "--listen-fd", "4", "--lock-fd", "5")


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of `pxd` that the control plane and a later self need again."""

    config_file: str | None = None
    system: bool = False
    socket: str | None = None
    settings: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return them as a command line; paths are absolute, because who reads them may stand elsewhere."""
        words: list[str] = []
        for name, value in (("--config", self.config_file), ("--socket", self.socket)):
            if value is not None:
                words += [name, os.path.abspath(os.path.expanduser(value))]
        for setting in self.settings:
            words += ["--set", setting]
        return [*words, "--system"] if self.system else words

    @property
    def scope(self) -> Scope:
        """Whom the daemon works for."""
        return Scope.SYSTEM if self.system else Scope.USER

    def paths(self) -> Paths:
        """Return where everything lies."""
        return resolve_paths(os.environ, scope=self.scope, config_file=self.config_file, socket=self.socket)

    def load(self, paths: Paths) -> Loaded:
        """Read and validate the settings.

        Raises:
            SettingsError: They are broken.
        """
        named = self.config_file is not None
        return load_settings(Sources(paths.config_file, paths.conf_dir, named, os.environ, self.settings))


@dataclass(frozen=True, slots=True)
class Held:
    """Descriptors that go over exec into the keeper; `socket_owned` says that the socket file is ours to unlink."""

    listen_fd: int | None
    lock_fd: int
    socket_owned: bool = True


def daemon_id(state_dir: Path) -> str:
    """Return the name of the daemon of this state directory: eight hex digits, the same at every start."""
    return hashlib.sha256(os.fsencode(os.path.realpath(state_dir))).hexdigest()[:8]


def boot_document(paths: Paths, settings: Settings, flags: Flags, held: Held) -> dict[str, Any]:
    """Return the boot document of the keeper."""
    daemon, logs = settings.daemon, settings.logs
    return {
        "daemon_id": daemon_id(paths.state_dir),
        "run_dir": str(paths.run_dir),
        "state_dir": str(paths.state_dir),
        "log_dir": str(paths.log_dir),
        "socket_path": str(paths.socket),
        "socket_owned": held.socket_owned,
        "listen_fd": held.listen_fd,
        "lock_fd": held.lock_fd,
        "control_argv": [sys.executable, "-P", "-m", "supervisord_py.daemon.control", *_CONTROL_FDS, *flags.words()],
        "pxd_argv": [sys.executable, "-P", "-m", "supervisord_py", "--foreground", *flags.words()],
        "log_segment_bytes": logs.segment_bytes,
        "log_total_bytes": logs.total_bytes,
        "stop_seconds": max(daemon.stop_seconds, longest_grace(settings) + STOP_MARGIN_SECONDS),
        "watchdog_seconds": min(WATCHDOG_SECONDS, daemon.control_hang_seconds / 2),
        "control_hang_seconds": daemon.control_hang_seconds,
        "backoff_initial_seconds": daemon.backoff_initial_seconds,
        "backoff_max_seconds": daemon.backoff_max_seconds,
        "cgroup": daemon.cgroup,
    }


def longest_grace(settings: Settings) -> float:
    """Return how long the slowest child may take from TERM to KILL; all are stopped at the same time."""
    return max(settings.tools.stop_timeout_seconds, settings.kernels.stop_seconds)


def boot_fd(document: dict[str, Any]) -> int:
    """Return an inheritable descriptor from which the document can be read once, to its end."""
    content = json.dumps(document).encode()
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("pxd-boot", 0)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        # A pipe takes at least 16 KiB on macOS before a writer waits; the document has about two.
        fd, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
    os.set_inheritable(fd, True)
    return fd


def keeper_argv(fd: int, *words: str) -> list[str]:
    """Return the command that becomes the keeper: no site packages, nothing of the user's environment."""
    script = Path(__file__).parent.parent / "keeper" / "__main__.py"
    return [sys.executable, "-I", "-S", str(script), *words, "--boot-fd", str(fd)]
