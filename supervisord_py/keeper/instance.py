"""One child process life, as the keeper holds it; never restarted, only replaced.

Two facts are kept apart: the *leader* (the process that was spawned) runs until it is reaped, and the *tree* (it and
all that descends from it) lives until its last process is gone. What is said about it on the wire is written here,
once.
"""

from __future__ import annotations

import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any

    from supervisord_py.keeper.cgroup import Group
    from supervisord_py.keeper.pump import Outlet
    from supervisord_py.keeper.unitlog import UnitLog


class Instance:
    """State of one instance.

    Attributes:
        key: The id that the control plane chose.
        born: The key that it was spawned with, which its environment bears; another one only after a renaming.
        unit: `kind:name`.
        pid: The leader's.
        start_time: The leader's, clock ticks since boot.
        pidfd: Holds the leader; -1 where there is none, or after the reaping.
        group: Its cgroup, on that rung.
        members: start time by pid, of every process ever seen in the tree and not yet seen gone.
        tree_alive: False once the last process of the tree is gone.
        stopping: A stop is under way, or ended with survivors.
        verdict: What the killer wrote down before it signalled.
        exit: The exit record, once the leader is reaped.
        report: Descriptor of the exec report, -1 once it is read.
        cpu_limit: Soft and hard RLIMIT_CPU in seconds, if set.
        memory_grace: Seconds between TERM and KILL when it is over its memory limit; 0 kills at once.
    """

    __slots__ = (
        "boot_id", "born", "cpu_limit", "exit", "fingerprint", "group", "key", "log", "log_position",
        "max_rss_bytes", "members", "memory_grace", "memory_in_kernel", "outlets", "pid", "pidfd", "report",
        "start_time", "started_at", "stopping", "tag", "tree_alive", "unit", "verdict",
    )  # fmt: skip

    def __init__(self, key: str, unit: str, tag: str, log: UnitLog, boot_id: str) -> None:
        self.key = self.born = key
        self.unit = unit
        self.tag = tag
        self.log = log
        self.boot_id = boot_id
        self.log_position = log.position
        self.fingerprint = 0
        self.pid = 0
        self.start_time = 0
        self.started_at = time.time()
        self.pidfd = -1
        self.report = -1
        self.group: Group | None = None
        self.outlets: list[Outlet] = []
        self.members: dict[int, int] = {}
        self.tree_alive = True
        self.stopping = False
        self.verdict: dict[str, Any] | None = None
        self.exit: dict[str, Any] | None = None
        self.max_rss_bytes: int | None = None
        self.memory_grace = 0.0
        self.memory_in_kernel = False
        self.cpu_limit: tuple[int, int] | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """The leader's (pid, start time)."""
        return (self.pid, self.start_time)

    def document(self) -> dict[str, Any]:
        """Return CHILD of the protocol."""
        return {
            "key": self.key,
            "unit": self.unit,
            "pid": self.pid,
            "start_time": self.start_time,
            "boot_id": self.boot_id,
            "started_at": self.started_at,
            "state": "exited" if self.exit else "running",
            "tag": self.tag,
            "log_position": self.log_position,
            "log_instance": self.log_instance,
            "stopping": self.stopping,
            "tree_alive": self.tree_alive,
            "exit": self.exit,
        }

    @property
    def log_instance(self) -> int:
        """The number that marks its records in the index."""
        return self.outlets[0].instance if self.outlets else 0

    def condemn(self, reason: str, by: str, signum: int, rss_bytes: int | None, limit_bytes: int | None) -> None:
        """Write down why it is about to be signalled; the first word stands, and nothing is added after the end."""
        if self.verdict is None and self.exit is None:
            self.verdict = {
                "reason": reason,
                "by": by,
                "rss_bytes": rss_bytes,
                "limit_bytes": limit_bytes,
                "signal": signum,
                "time": time.time(),
            }

    def escalate(self) -> None:
        """Note in the verdict that it came to SIGKILL; what has ended already ended by what it was told before."""
        if self.verdict is not None and self.exit is None:
            self.verdict["signal"] = int(signal.SIGKILL)

    def conclude(self, code: int | None, signum: int | None, usage: resource.struct_rusage, rss_unit: int) -> None:
        """Write the exit record.

        Args:
            code: Exit code, or None when a signal ended it.
            signum: That signal, or None.
            usage: wait4's account of the leader and its reaped children.
            rss_unit: Bytes in one unit of ru_maxrss: 1024 on Linux, 1 on macOS (getrusage(2)).
        """
        self.exit = {
            "key": self.key,
            "unit": self.unit,
            "pid": self.pid,
            "start_time": self.start_time,
            "boot_id": self.boot_id,
            "started_at": self.started_at,
            "ended_at": time.time(),
            "code": code,
            "signal": signum,
            "user_seconds": usage.ru_utime,
            "system_seconds": usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * rss_unit,
            "log_position": self.log_position,
            "log_end": self.log.position,
            "verdict": self.verdict,
            "orphans": 0,
        }
