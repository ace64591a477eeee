"""What the keeper was told at its birth, and which rungs this machine offers: read once, never changed.

The boot document is JSON that `pxd` wrote into an inherited descriptor before it became the keeper (DESIGN §1).
"""

from __future__ import annotations

import json
import os
import resource
import time

from supervisord_py.keeper import cgroup, processes, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_FD = -1


class BootError(Exception):
    """The boot document cannot be used."""


class Boot:
    """The boot document. Durations in seconds, sizes in bytes; descriptors are -1 where there is none."""

    __slots__ = (
        "backoff_initial_seconds", "backoff_max_seconds", "cgroup", "control_argv",
        "control_hang_seconds", "daemon_id", "listen_fd", "lock_fd", "log_dir", "log_segment_bytes", "log_spill_bytes",
        "log_total_bytes", "platform", "pxd_argv", "run_dir", "socket_owned", "socket_path", "state_dir",
        "stop_seconds", "watchdog_seconds",
    )  # fmt: skip

    def __init__(self, document: dict[str, Any]) -> None:
        try:
            self.daemon_id: str = document["daemon_id"]
            self.run_dir: str = document["run_dir"]
            self.state_dir: str = document["state_dir"]
            self.log_dir: str = document["log_dir"]
            self.control_argv: list[str] = list(document["control_argv"])
        except KeyError as missing:
            raise BootError(f"the boot document lacks {missing}") from None
        self.pxd_argv: list[str] = list(document.get("pxd_argv") or ())
        self.socket_path: str = document.get("socket_path") or ""
        self.socket_owned: bool = document.get("socket_owned", os.environ.get("LISTEN_PID") != str(os.getpid()))
        self.listen_fd = _fd(document, "listen_fd")
        self.lock_fd = _fd(document, "lock_fd")
        self.log_segment_bytes = int(document.get("log_segment_bytes", 8 << 20))
        self.log_total_bytes = int(document.get("log_total_bytes", 64 << 20))
        self.log_spill_bytes = int(document.get("log_spill_bytes", 1 << 20))
        self.stop_seconds = float(document.get("stop_seconds", 10))
        self.watchdog_seconds = float(document.get("watchdog_seconds", 0))
        self.control_hang_seconds = float(document.get("control_hang_seconds", 30))
        self.backoff_initial_seconds = float(document.get("backoff_initial_seconds", 0.2))
        self.backoff_max_seconds = float(document.get("backoff_max_seconds", 30))
        self.cgroup: str = document.get("cgroup", "auto")
        self.platform: str = document.get("platform", "auto")


def _fd(document: dict[str, Any], name: str) -> int:
    value = document.get(name)
    return NO_FD if value is None else int(value)


def read_boot(fd: int) -> Boot:
    """Read the document from an inherited pipe or memfd, to its end, and close it.

    Raises:
        BootError: It is not what it must be.
    """
    try:
        if os.fstat(fd).st_size:  # a memfd or a file may stand at its end after the writing
            os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise BootError(f"the boot document on descriptor {fd} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise BootError("the boot document is no JSON object")
    return Boot(document)


class Rungs:
    """What this machine lets us do (DESIGN §5)."""

    __slots__ = ("groups", "pidfd", "portable", "subreaper")

    def __init__(self, boot: Boot) -> None:
        self.portable = boot.platform == "portable" or not system.is_linux()
        self.pidfd = not self.portable and system.have_pidfd()
        self.subreaper = not self.portable and system.become_subreaper()
        use_groups = self.subreaper and boot.cgroup != "off"
        self.groups = cgroup.found(boot.daemon_id) if use_groups else None

    @property
    def kill(self) -> str:
        """The kill rung: cgroup, subreaper or process_group."""
        if self.groups is not None:
            return "cgroup"
        return "subreaper" if self.subreaper else "process_group"

    @property
    def memory(self) -> str:
        """The memory rung: cgroup, resident or footprint."""
        if self.groups is not None and self.groups.memory:
            return "cgroup"
        return "footprint" if self.portable else "resident"


class Birth:
    """Facts of this very process, taken before it changes any of them."""

    __slots__ = ("boot_id", "environ", "nofile", "pid", "start_time", "started_at", "umask")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.started_at = time.time()
        me = processes.look(self.pid)
        self.start_time = me.start_time if me else 0
        self.boot_id = system.boot_id()
        self.environ = dict(os.environ)
        self.nofile = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Everything that the keeper makes is its user's alone, whatever umask it was started with.
        self.umask = os.umask(0o077)

    def take_descriptors(self) -> None:
        """Raise the soft limit of open files to the hard one: each child costs three. Children get the old one."""
        soft, hard = self.nofile
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError):
                return  # macOS refuses more than kern.maxfilesperproc: the soft limit stands

    def restore(self) -> None:
        """Undo it, for an exec of somebody else in this process."""
        os.umask(self.umask)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.nofile)
        except (OSError, ValueError):
            return
