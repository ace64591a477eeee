"""One held instance, and which process belongs to which instance.

A process belongs to an instance if, in this order: it is in its cgroup, where there is one; it is
the leader; it was a member in an earlier snapshot (same pid and start time); its parent is a
member; it was reparented to us and (1) carries the instance's mark in its environment, (2) is in
its leader's process group, (3) holds a pipe of its output, or (4) there is only one instance.
Otherwise it is unassigned: it is named, and not signalled. One snapshot of the process table serves
all that ask in the same moment.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from supervisord_py.keeper import procfs
from supervisord_py.keeper.cgroup import Cgroup
from supervisord_py.keeper.protocol import MARK_INSTANCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from supervisord_py.keeper.logs import OutputPipe, UnitLog
    from supervisord_py.keeper.procfs import Process
    from supervisord_py.keeper.spawn import RefusedError

    Answer = Callable[[dict[str, Any] | RefusedError], None]

INIT_PID = 1
KEEPS_MOVING = procfs.Process(0, 0, 0, 0, "(keeps moving)")
"""Stands for a tree that lives although none of its processes holds still to be named."""
DEFAULT_STOP_SECONDS = 5.0
"""Between TERM and KILL at the end of the keeper, for a child whose control plane did not say."""
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in one unit of ru_maxrss (getrusage(2))
IDENTITY_MEMBERS = ("key", "unit", "pid", "start_time", "boot_id", "started_at")
"""What CHILD and EXIT of the protocol both begin with."""


class HeldChild:
    """One instance: one process life, never restarted, only replaced."""

    def __init__(self, message: Mapping[str, Any], boot_id: str) -> None:
        self.key: str = message["key"]  # the id that the control plane chose
        self.unit: str = message["unit"]
        self.tag: str = message.get("tag", "")
        self.boot_id = boot_id
        self.pid = self.start_time = 0  # the leader's; clock ticks since boot
        # descriptor of the exec report, -1 once it is read; then those who wait are told
        self.report = -1
        self.answers: list[Answer] = []
        self.started_at = time.time()
        self.group: Cgroup | None = None  # its cgroup, on that rung
        # None when all output goes to descriptors that came with the order
        self.log: UnitLog | None = None
        self.log_position = 0
        self.pipes: list[OutputPipe] = []
        # descriptor, stream, instance: read by an earlier version
        self.pipe_ends: list[tuple[int, int, int]] = []
        self.pipe_inodes: set[int] = set()  # of the pipes that its output goes through
        # start time by pid, of all ever seen in the tree and not yet seen gone
        self.members: dict[int, int] = {}
        self.tree_alive = True  # False once the last process of the tree is gone
        self.verdict: dict[str, Any] | None = None  # what the killer wrote down before it signalled
        self.exit: dict[str, Any] | None = None  # the exit record, once the leader is reaped
        self.is_exit_sent = False  # to the present control plane; the next one is sent it again
        # its start failed after the fork: it is being killed, and its end is not reported
        self.is_discarded = False
        self.max_rss_bytes: int | None = message.get("max_rss_bytes") or None
        self.memory_grace = float(message.get("memory_grace_seconds") or 0.0)  # from TERM to KILL
        self.memory_in_kernel = False
        # Between TERM and KILL when the keeper itself has to stop it. An older control plane does
        # not say.
        grace = message.get("stop_grace_seconds")
        self.stop_grace_seconds = DEFAULT_STOP_SECONDS if grace is None else float(grace)
        self.cpu_limit = (-1, -1)  # soft and hard RLIMIT_CPU in seconds; negative for none

    # -- from one version of the keeper to the next (handover.py) --------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return what the next version needs; descriptors by their numbers.

        The keys are pinned by a test.
        """
        return {
            "key": self.key,
            "unit": self.unit,
            "tag": self.tag,
            "boot_id": self.boot_id,
            "pid": self.pid,
            "start_time": self.start_time,
            "started_at": self.started_at,
            "report": self.report,
            "log_position": self.log_position,
            "tree_alive": self.tree_alive,
            "verdict": self.verdict,
            "exit": self.exit,
            "max_rss_bytes": self.max_rss_bytes,
            "memory_grace": self.memory_grace,
            "memory_in_kernel": self.memory_in_kernel,
            "cpu_limit": list(self.cpu_limit),
            "stop_grace_seconds": self.stop_grace_seconds,
            "group": self.group.path if self.group else None,
            "members": [list(identity) for identity in self.members.items()],
            "pipes": [[pipe.fd, pipe.stream, pipe.instance] for pipe in self.pipes if pipe.fd >= 0],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> HeldChild:
        """Return the child of such a document.

        Raises ValueError, KeyError or TypeError when it is none.
        """
        child = cls(document, document["boot_id"])
        child.pid = int(document["pid"])
        child.start_time = int(document["start_time"])
        child.started_at = float(document["started_at"])
        child.report = int(document["report"])
        child.log_position = int(document["log_position"])
        child.tree_alive = bool(document["tree_alive"])
        child.verdict = document["verdict"]
        child.exit = document["exit"]
        child.max_rss_bytes = document["max_rss_bytes"]
        child.memory_grace = float(document["memory_grace"])
        child.memory_in_kernel = bool(document["memory_in_kernel"])
        soft, hard = document["cpu_limit"]
        child.cpu_limit = (int(soft), int(hard))
        child.group = Cgroup(document["group"]) if document["group"] else None
        child.members = {int(pid): int(start_time) for pid, start_time in document["members"]}
        child.pipe_ends = [
            (int(fd), int(stream), int(instance)) for fd, stream, instance in document["pipes"]
        ]
        child.is_exit_sent = child.exit is not None  # to the control plane of that time
        return child

    @property
    def identity(self) -> tuple[int, int]:
        return (self.pid, self.start_time)

    def document(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in (*IDENTITY_MEMBERS, "tag", "log_position", "tree_alive", "exit")
        }

    def condemn(
        self,
        reason: str,
        by: str,
        signum: int,
        rss_bytes: int | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        """Write down why it is about to be signalled; the first word stands, and nothing is
        added after the end.
        """
        if self.verdict is None and self.exit is None:
            figures = {"rss_bytes": rss_bytes, "limit_bytes": limit_bytes}
            self.verdict = {
                "reason": reason,
                "by": by,
                **figures,
                "signal": int(signum),
                "time": time.time(),
            }

    def escalate(self) -> None:
        """Note in the verdict that it came to SIGKILL; what has ended already ended by what it
        was told before.
        """
        if self.verdict is not None and self.exit is None:
            self.verdict["signal"] = int(signal.SIGKILL)

    def conclude(self, code: int, usage: resource.struct_rusage, *, counted: bool) -> None:
        """Write the exit record, from the exit code or minus the signal, and wait4's account.

        `counted`: the kernel counts the memory of groups, and leaves proof where it was the killer.
        """
        cpu_seconds = usage.ru_utime + usage.ru_stime
        peak = None
        if counted and self.group is not None:
            peak = self.group.memory_peak()
            reason = self.group.oom()
            if reason is not None:
                self.condemn(reason, "cgroup", signal.SIGKILL, peak, self.max_rss_bytes)
        if -code in (signal.SIGXCPU, signal.SIGKILL):
            # The limit counts whole ticks as they are sampled, rusage counts precisely: on a
            # crowded machine the two differ. Nobody but the kernel has a reason to send SIGXCPU;
            # SIGKILL may come from anywhere.
            soft, hard = self.cpu_limit
            needed = soft * 0.5 if -code == signal.SIGXCPU else hard * 0.9
            if soft >= 0 and 0 <= needed <= cpu_seconds:
                self.condemn("cpu_limit", "rlimit", -code)
        self.exit = {
            **{
                name: getattr(self, name) for name in (*IDENTITY_MEMBERS, "log_position", "verdict")
            },
            "ended_at": time.time(),
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "user_seconds": usage.ru_utime,
            "system_seconds": usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * RSS_UNIT,
            "memory_peak_bytes": peak,
            "log_end": self.log.position if self.log is not None else self.log_position,
        }


class Membership:
    """Finds the processes of each instance; `children` (by key) and `strangers` (pids of no
    instance) are live views.

    Every look may raise OSError: nothing can be seen now. Then what was seen before stands.
    """

    def __init__(
        self, children: Mapping[str, HeldChild], strangers: set[int], *, subreaper: bool
    ) -> None:
        self._children = children
        self._strangers = strangers
        self._me = os.getpid()
        self._adopter = self._me if subreaper else INIT_PID  # to whom orphans come back
        self._rows: dict[int, Process] = {}
        self._families: dict[str, list[Process]] = {}
        self._last_pid: int | None = None
        # orphans that came back to us, of no known instance
        self._unassigned: dict[tuple[int, int], Process] = {}

    def take(self) -> None:
        """Take a new snapshot of the process table, and assign every process in it."""
        last_pid = procfs.last_pid()
        rows = procfs.table()
        held = [child for child in self._children.values() if child.tree_alive and child.pid]
        for child in held:
            if child.start_time == 0 and child.exit is None and child.pid in rows:
                # it could not be seen when it was started
                child.start_time = rows[child.pid].start_time
        owners = {identity: child.key for child in held for identity in child.members.items()}
        owners |= {child.identity: child.key for child in held}
        unassigned: dict[tuple[int, int], Process] = {}

        def owner_of_orphan(row: Process) -> str | None:
            key = self._owner_of_orphan(row)
            if key is None and row.alive and self._adopter == self._me:
                unassigned[row.identity] = row
            return key

        families = assign(
            rows, owners, self._adopter, self._strangers | {self._me}, owner_of_orphan
        )
        self._rows = rows
        self._last_pid = last_pid
        self._families = families
        self._unassigned = unassigned
        for child in held:
            child.members = {row.pid: row.start_time for row in families.get(child.key, [])}

    def recount(self, leaderless: Iterable[HeldChild]) -> None:
        """Look at trees whose leaders are reaped: at the process table only where something may be
        left of one.

        What is left has come back to us, or descends from what has. So where each child of ours is
        a leader, or of no instance, all of them are empty.
        """
        leaders = {child.pid for child in self._children.values() if child.exit is None}
        ours = procfs.children(self._me) if self._adopter == self._me else None
        if ours is None or not ours <= leaders | self._strangers:
            self.take()
            return
        for child in leaderless:
            child.members = {}
            self._families.pop(child.key, None)

    def catch_up(self) -> None:
        """Take a new snapshot if anything was forked since the last one."""
        newest = procfs.last_pid()
        if newest is None or newest != self._last_pid:
            self.take()

    def members(self, child: HeldChild) -> list[Process]:
        """Return the live processes of a tree: now, where it has a group; else as of the last
        snapshot.
        """
        if child.group is not None and child.group.populated():
            rows = [procfs.look(pid) for pid in child.group.members()]
            return [row for row in rows if row is not None and row.alive] or [KEEPS_MOVING]
        family = self._families.get(child.key, []) if child.tree_alive else []
        if child.group is not None:  # no snapshot was taken for its sake: what it held may be gone
            family = [
                now
                for row in family
                if (now := procfs.look(row.pid)) and now.identity == row.identity
            ]
        return [row for row in family if row.alive]

    def unassigned_since(self, child: HeldChild) -> list[Process]:
        """Return the live orphans of the last snapshot that may be a child's, though nothing
        tells whose they are.
        """
        return [row for row in self._unassigned.values() if row.start_time >= child.start_time]

    def descendants(self) -> list[Process]:
        """Return every live descendant of this process but the strangers, in a new snapshot; the
        keeper's last look.
        """
        self.take()
        ours = assign(self._rows, {}, self._me, self._strangers | {self._me}, lambda _: "")
        return [row for row in ours.get("", []) if row.alive]

    def _owner_of_orphan(self, row: Process) -> str | None:
        """Return the key of the instance that an orphan descends from, by what it still carries
        of it; else None.
        """
        if not row.alive:
            return None
        held = [child for child in self._children.values() if child.tree_alive and child.pid]
        # 1. The mark in the environment that it was started with.
        mark = (
            procfs.environment(row.pid).get(MARK_INSTANCE.encode(), b"").decode("ascii", "replace")
        )
        # 2. Its process group: in the middle of an exec a process has no environment to read. (A
        #    group's number is taken as long as the group has members.)
        for child in held:
            if child.key == mark:
                return child.key
        for child in held:
            if child.pid == row.pgid:
                return child.key
        # 3. The pipes of its output: they are inherited like everything that is not closed on
        #    purpose.
        if any(child.pipe_inodes for child in held):
            pipes = procfs.open_pipes(row.pid)
            for child in held:
                if pipes & child.pipe_inodes:
                    return child.key
        # 4. There is only one instance, it is older, and this orphan was not left over by an
        #    earlier one: every stop takes a snapshot, in which it would have been unassigned. In
        #    doubt, nothing is signalled.
        if row.identity in self._unassigned or self._adopter != self._me:
            return None
        if len(held) == 1 and 0 < held[0].start_time <= row.start_time:
            return held[0].key
        return None


def assign(
    rows: Mapping[int, Process],
    owners: Mapping[tuple[int, int], str],
    adopter: int,
    strangers: set[int],
    orphan: Callable[[Process], str | None],
) -> dict[str, list[Process]]:
    """Return the processes of each key, zombies included, in no order. Pure but for `orphan`.

    `owners` has the key by identity of each leader, reaped or not, and of every process assigned
    before; `adopter` is the pid that orphans come back to, and `orphan` says the key of one
    (slowly), or None.
    """
    found: dict[int, str | None] = dict.fromkeys(strangers)
    families: dict[str, list[Process]] = {}
    for start in rows:
        # Climb to the first ancestor whose owner is known, then note it for all on the way down.
        way: list[int] = []
        key: str | None = None
        pid = start
        while pid in rows and pid not in way:
            if pid in found:
                key = found[pid]
                break
            way.append(pid)
            row = rows[pid]
            key = owners.get(row.identity)
            if key is not None:
                break
            if row.ppid == adopter:
                key = orphan(row)
                break
            pid = row.ppid
        found.update(dict.fromkeys(way, key))
    for pid, row in rows.items():
        key = found.get(pid)
        if key is not None:
            families.setdefault(key, []).append(row)
    return families
