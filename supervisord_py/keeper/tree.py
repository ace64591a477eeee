"""One held instance; whose process is whose; and the end of a whole tree.

Members are found by cgroup where there is one, else by descent and by mark. One snapshot of the process table serves
all that ask in the same moment. A leader is its instance's; what was ours stays ours, by identity, also when its
parents are gone; a child is its parent's; an orphan that came back to whoever adopts is told by the mark in its
environment.

The kill ladder: TERM (then CONT) to the whole tree, a grace, KILL until nothing is left. *Stopped* means that the tree
is empty, not that its leader was reaped (DESIGN §4, law 2). Zombies do not count. All stops share one timer and one
snapshot; the stops of one instance share one ladder, on which the shortest grace wins. What is still there after
`kill_seconds` of KILL is named, never forgotten. A cgroup is killed by one write, so that a pid that keeps moving
cannot escape; then what left the group is looked for. Without one, what is found is killed again and again, the
leader's process group first.
"""

from __future__ import annotations

import contextlib
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
    from supervisord_py.keeper.loop import Loop, Timer
    from supervisord_py.keeper.procfs import Process
    from supervisord_py.keeper.spawn import RefusedError

    Answer = Callable[[dict[str, Any] | RefusedError], None]
    Done = Callable[[list[Process], bool], None]  # takes the survivors (empty: all gone) and whether KILL was needed

INIT_PID = 1
KILL_SECONDS = 5.0  # of KILL before survivors are named
POLL_SECONDS = 0.05  # beside the ends that SIGCHLD tells
KEEPS_MOVING = procfs.Process(0, 0, 0, 0, "(keeps moving)")
"""Stands for a tree that lives although none of its processes holds still to be named."""
ROUNDS = 5  # looks in one turn of the KILL phase, so that what forks between a look and a signal loses the race


RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in one unit of ru_maxrss (getrusage(2))
WHO = ("key", "unit", "pid", "start_time", "boot_id", "started_at")
"""What CHILD and EXIT of the protocol both begin with."""
KEPT = (
    *(*WHO, "tag", "report", "log_position", "tree_alive", "verdict", "exit"),
    *("max_rss_bytes", "memory_grace", "memory_in_kernel", "cpu_limit"),
)
"""What goes to the next version of the keeper as it stands (handover.py)."""


class HeldChild:
    """One instance: one process life, never restarted, only replaced."""

    def __init__(self, message: Mapping[str, Any], boot_id: str) -> None:
        self.key: str = message["key"]  # the id that the control plane chose
        self.unit: str = message["unit"]
        self.tag: str = message.get("tag", "")
        self.boot_id = boot_id
        self.pid = self.start_time = 0  # the leader's; clock ticks since boot
        self.report = -1  # descriptor of the exec report, -1 once it is read; then those who wait are told
        self.answers: list[Answer] = []
        self.started_at = time.time()
        self.group: Cgroup | None = None  # its cgroup, on that rung
        self.log: UnitLog | None = None  # None when all output goes to descriptors that came with the order
        self.log_position = 0
        self.pipes: list[OutputPipe] = []
        self.ends: list[list[int]] = []  # (descriptor, stream, instance) of the pipes that an earlier version read
        self.members: dict[int, int] = {}  # start time by pid, of all ever seen in the tree and not yet seen gone
        self.tree_alive = True  # False once the last process of the tree is gone
        self.verdict: dict[str, Any] | None = None  # what the killer wrote down before it signalled
        self.exit: dict[str, Any] | None = None  # the exit record, once the leader is reaped
        self.told = False  # to the control plane of that time; the next one is told again
        self.max_rss_bytes: int | None = message.get("max_rss_bytes") or None
        self.memory_grace = float(message.get("memory_grace_seconds") or 0.0)  # from TERM to KILL
        self.memory_in_kernel = False
        self.cpu_limit = (-1, -1)  # soft and hard RLIMIT_CPU in seconds; negative for none

    def hand_over(self) -> dict[str, Any]:
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
        child.told = child.exit is not None  # `hand_over` tells the ends first
        return child

    @property
    def identity(self) -> tuple[int, int]:
        return (self.pid, self.start_time)

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*WHO, "tag", "log_position", "tree_alive", "exit")}

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

    def conclude(self, code: int, usage: resource.struct_rusage, *, counted: bool) -> None:
        """Write the exit record, from the exit code or minus the signal, and wait4's account.

        `counted`: the kernel counts the memory of groups, and leaves proof where it was the killer.
        """
        cpu_seconds, peak = usage.ru_utime + usage.ru_stime, None
        if counted and self.group is not None:
            peak = self.group.memory_peak()
            if (reason := self.group.oom()) is not None:
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
        }


class Membership:
    """Finds the processes of each instance; `children` (by key) and `strangers` (nobody's pids) are live views."""

    def __init__(self, children: Mapping[str, HeldChild], strangers: set[int], *, subreaper: bool) -> None:
        self._children = children
        self._strangers = strangers
        self._me = os.getpid()
        self._adopter = self._me if subreaper else INIT_PID  # to whom orphans come back
        self._rows: dict[int, Process] = {}
        self._families: dict[str, list[Process]] = {}
        self._last_pid: int | None = None

    def take(self) -> None:
        self._last_pid = procfs.last_pid()
        self._rows = procfs.table()
        held = [child for child in self._children.values() if child.tree_alive and child.pid]
        owners = {identity: child.key for child in held for identity in child.members.items()}
        owners |= {child.identity: child.key for child in held}
        self._families = assign(self._rows, owners, self._adopter, self._strangers | {self._me}, self._marked)
        for child in held:
            child.members = {row.pid: row.start_time for row in self._families.get(child.key, [])}

    def recount(self, leaderless: Iterable[HeldChild]) -> None:
        """Look at trees whose leaders are reaped: at the process table only where something may be left of one.

        What is left has come back to us, or descends from what has. So where each child of ours is a leader, or
        nobody's, all of them are empty.
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
        """Return the live processes of a tree: now, where it has a group; else as of the last snapshot."""
        if child.group is not None and child.group.populated():
            found = [procfs.look(pid) for pid in child.group.members()]
            return [row for row in found if row is not None and row.alive] or [KEEPS_MOVING]
        rows = self._families.get(child.key, []) if child.tree_alive else []
        if child.group is not None:  # nobody took a snapshot for its sake: what it held may be gone
            rows = [now for row in rows if (now := procfs.look(row.pid)) and now.identity == row.identity]
        return [row for row in rows if row.alive]

    def descendants(self) -> list[Process]:
        """Return every live descendant of this process but the strangers, in a new snapshot; the keeper's last look."""
        self.take()
        ours = assign(self._rows, {}, self._me, self._strangers | {self._me}, lambda _: "")
        return [row for row in ours.get("", []) if row.alive]

    def _marked(self, row: Process) -> str | None:
        """Return the key in the mark that an orphan has in its environment, or that of the leader of its group."""
        mark = procfs.environment(row.pid).get(MARK_INSTANCE.encode(), b"").decode("ascii", "replace")
        held = [child for child in self._children.values() if child.tree_alive and row.alive]
        # In the middle of an exec a process has no environment to read, but its group (a number that is taken as long
        # as the group has members).
        return next((c.key for c in held if c.key == mark), None) or next(
            (c.key for c in held if c.pid == row.pgid), None
        )


def assign(
    rows: Mapping[int, Process],
    owners: Mapping[tuple[int, int], str],
    adopter: int,
    strangers: set[int],
    orphan: Callable[[Process], str | None],
) -> dict[str, list[Process]]:
    """Return the processes of each key, zombies included, in no order. Pure but for `orphan`.

    `owners` has the key by identity of each leader, reaped or not, and of every process assigned before; `adopter` is
    the pid that orphans come back to, and `orphan` says the key of one (slowly), or None.
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


class TreeStop:
    """One instance on its way down. Deadlines are monotonic seconds; `termed` holds who was asked to end."""

    def __init__(self, child: HeldChild, term_until: float, kill_seconds: float) -> None:
        self.child = child
        self.term_until = term_until
        self.kill_seconds = kill_seconds
        self.kill_by = 0.0
        self.killed = False
        self.termed: set[tuple[int, int]] = set()
        self.waiters: list[Done] = []


class KillLadder:
    """All stops under way. `reap_leader` and `close` are those of the holder of the children."""

    def __init__(
        self,
        loop: Loop,
        membership: Membership,
        reap_leader: Callable[[HeldChild], None],
        close: Callable[[HeldChild], None],
    ) -> None:
        self._loop = loop
        self._membership = membership
        self._reap_leader, self._close = reap_leader, close
        self._looked = False
        self._stops: dict[str, TreeStop] = {}
        self._timer: Timer | None = None

    def stop(self, child: HeldChild, grace: float, kill_seconds: float, done: Done) -> None:
        """Begin, or join, the stop of an instance; `done` is called once.

        Seconds are `grace`, between TERM and KILL (0 kills at once), and `kill_seconds`, before survivors are named.
        """
        if not child.tree_alive:
            done([], False)
            return
        until = self._loop.now() + grace
        stop = self._stops.setdefault(child.key, TreeStop(child, until, kill_seconds))
        stop.term_until = min(stop.term_until, until)
        stop.waiters.append(done)
        self.hurry()

    def deadlines(self) -> dict[str, float]:
        """Return, by key, until when each tree under way may end by itself."""
        return {key: stop.term_until for key, stop in self._stops.items()}

    def hurry(self) -> None:
        """Look again in the next turn: something has ended."""
        if self._stops:
            self._arm(0.0)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(seconds, self._tick)

    def _tick(self) -> None:
        began = self._loop.now()
        self._timer = None
        self._looked = False
        for stop in list(self._stops.values()):
            self._step(stop, self._loop.now())
        if self._stops:
            # A look at a crowded machine may cost more than the pause: spend at most a quarter of the time looking.
            self._arm(max(POLL_SECONDS, 3 * (self._loop.now() - began)))

    def _step(self, stop: TreeStop, now: float) -> None:
        child = stop.child
        # An empty group does not end the search: what moved itself out of it (root may) is found by mark and descent.
        if not self._looked and (child.group is None or not child.group.populated()):
            self._looked = True  # one snapshot serves all stops of a turn
            self._membership.take()
        left = self._membership.members(child)
        if left and now >= stop.term_until:
            left = self._kill(stop, left, now)
        else:
            self._terminate(stop, left)
        self._reap_leader(child)
        if not left and child.exit is not None:
            self._close(child)
        if not child.tree_alive or (left and stop.killed and now >= stop.kill_by):
            del self._stops[child.key]
            for done in stop.waiters:
                done(left, stop.killed)

    @staticmethod
    def _terminate(stop: TreeStop, members: list[Process]) -> None:
        # What a member that was asked before starts now is how it ends: it is asked only if that leaves it behind.
        ending = {row.pid for row in members if row.identity in stop.termed}
        for row in members:
            if row.identity not in stop.termed and row.ppid not in ending:
                stop.termed.add(row.identity)
                procfs.send(row, signal.SIGTERM)
                procfs.send(row, signal.SIGCONT)  # a stopped process takes no TERM before it goes on

    def _kill(self, stop: TreeStop, members: list[Process], now: float) -> list[Process]:
        if not stop.killed:
            stop.killed = True
            stop.kill_by = now + stop.kill_seconds
            stop.child.escalate()
        for _ in range(ROUNDS):
            kill_all(stop.child, members)
            seen = {row.identity for row in members}
            if stop.child.group is None or not stop.child.group.populated():
                self._membership.take()
            members = self._membership.members(stop.child)
            if all(row.identity in seen for row in members):
                break
        return members


def kill_all(child: HeldChild, members: list[Process]) -> None:
    if child.group is not None:
        child.group.kill()
    elif child.exit is None and child.pid > 0:
        # Not reaped yet, so the number still is our leader's and names its group.
        with contextlib.suppress(OSError):  # empty already, or (macOS) only zombies are in it
            os.killpg(child.pid, signal.SIGKILL)
    for row in members:
        procfs.send(row, signal.SIGKILL)
