"""One instance as the keeper holds it: who it is, what became of it, and the records that are told about it."""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from binascii import crc32

from supervisord_py.keeper import spawn
from supervisord_py.keeper.cgroup import Cgroup
from supervisord_py.keeper.spawn import SpawnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from supervisord_py.keeper.logs import OutputPipe, UnitLog

    Answer = Callable[["HeldChild | SpawnError"], None]

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in one unit of ru_maxrss (getrusage(2))
KEPT = (
    *("key", "unit", "tag", "boot_id", "fingerprint", "pid", "start_time", "report", "started_at", "log_position"),
    *("tree_alive", "stopping", "verdict", "exit", "max_rss_bytes", "memory_grace", "memory_in_kernel", "cpu_limit"),
)
"""What goes to the next version of the keeper as it stands (handover.py)."""
WHO = ("key", "unit", "pid", "start_time", "boot_id", "started_at")
"""What CHILD and EXIT of the protocol both begin with."""


class HeldChild:
    """One instance: one process life, never restarted, only replaced."""

    def __init__(self, message: Mapping[str, Any], boot_id: str) -> None:
        limit = message.get("max_rss_bytes")
        self.key = spawn.text(message, "key")  # the id that the control plane chose
        self.unit = spawn.text(message, "unit")
        self.tag = str(message.get("tag", ""))
        self.boot_id = boot_id
        order = {name: value for name, value in message.items() if name != "id"}
        self.fingerprint = crc32(json.dumps(order, sort_keys=True).encode())  # equal for equal orders
        self.pid = self.start_time = 0  # the leader's; clock ticks since boot
        self.report = -1  # descriptor of the exec report, -1 once it is read; then those who wait are told
        self.answers: list[Answer] = []
        self.started_at = time.time()
        self.group: Cgroup | None = None  # its cgroup, on that rung
        self.log: UnitLog | None = None  # None when all output goes to descriptors that came with the order
        self.log_position = 0
        self.pipes: list[OutputPipe] = []
        self.ends: list[list[int]] = []  # (descriptor, stream, instance) of the pipes that an earlier version read
        self.watched_member = -1  # pidfd of a process that outlived the leader
        self.members: dict[int, int] = {}  # start time by pid, of all ever seen in the tree and not yet seen gone
        self.tree_alive = True  # False once the last process of the tree is gone
        self.stopping = False  # a stop is under way, or ended with survivors
        self.verdict: dict[str, Any] | None = None  # what the killer wrote down before it signalled
        self.exit: dict[str, Any] | None = None  # the exit record, once the leader is reaped
        self.max_rss_bytes = int(limit) if limit else None
        self.memory_grace = max(0.0, spawn.number(message, "memory_grace_seconds", 0.0))  # from TERM to KILL
        self.memory_in_kernel = False
        self.cpu_limit = (-1, -1)  # soft and hard RLIMIT_CPU in seconds; negative for none

    def hand_over(self) -> dict[str, Any]:
        """Return all of it as JSON, for the next version of the keeper."""
        return {
            **{name: getattr(self, name) for name in KEPT},
            "group": self.group.path if self.group else None,
            "members": list(self.members.items()),
            "pipes": [(pipe.fd, pipe.stream, pipe.instance) for pipe in self.pipes if pipe.fd >= 0],
        }

    @classmethod
    def handed_over(cls, document: dict[str, Any]) -> HeldChild:
        """Return the child of such a document; ValueError, KeyError or TypeError: it is none."""
        child = cls(document, document["boot_id"])
        for name in KEPT:
            setattr(child, name, document[name])
        child.group = Cgroup(document["group"]) if document["group"] else None
        child.members = dict(document["members"])
        child.ends = document["pipes"]
        return child

    @property
    def identity(self) -> tuple[int, int]:
        """The leader's (pid, start time)."""
        return (self.pid, self.start_time)

    def document(self) -> dict[str, Any]:
        """Return CHILD of the protocol."""
        facts = {name: getattr(self, name) for name in (*WHO, "tag", "log_position", "stopping", "tree_alive", "exit")}
        return {**facts, "state": "exited" if self.exit else "running"}

    def condemn(
        self, reason: str, by: str, signum: int, rss_bytes: int | None = None, limit_bytes: int | None = None
    ) -> None:
        """Write down why it is about to be signalled; the first word stands, and nothing is added after the end."""
        if self.verdict is None and self.exit is None:
            figures = {"rss_bytes": rss_bytes, "limit_bytes": limit_bytes}
            self.verdict = {"reason": reason, "by": by, **figures, "signal": int(signum), "time": time.time()}

    def escalate(self) -> None:
        """Note in the verdict that it came to SIGKILL; what has ended already ended by what it was told before."""
        if self.verdict is not None and self.exit is None:
            self.verdict["signal"] = int(signal.SIGKILL)

    def conclude(self, code: int, usage: resource.struct_rusage) -> None:
        """Write the exit record, from the exit code or minus the signal, and wait4's account."""
        cpu_seconds = usage.ru_utime + usage.ru_stime
        # Where the kernel was the killer, say so if it left proof.
        peak = self.group.memory_peak() if self.group is not None else None
        if self.group is not None and (reason := self.group.oom()) is not None:
            self.condemn(reason, "cgroup", signal.SIGKILL, peak, self.max_rss_bytes)
        if -code in (signal.SIGXCPU, signal.SIGKILL):
            # The limit counts whole ticks as they are sampled, rusage counts precisely: on a crowded machine the two
            # differ. Nobody but the kernel has a reason to send SIGXCPU; SIGKILL may come from anywhere.
            soft, hard = self.cpu_limit
            needed = soft * 0.5 if -code == signal.SIGXCPU else hard * 0.9
            if soft >= 0 and 0 <= needed <= cpu_seconds:
                self.condemn("cpu_limit", "rlimit", -code)
        self.exit = {
            **{name: getattr(self, name) for name in (*WHO, "log_position", "verdict")},
            "ended_at": time.time(),
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "user_seconds": usage.ru_utime,
            "system_seconds": usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * RSS_UNIT,
            "memory_peak_bytes": peak,
            "log_end": self.log.position if self.log is not None else self.log_position,
            "orphans": 0,
        }
