"""Whose process is whose, and the end of a whole tree.

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

from supervisord_py.keeper import procfs
from supervisord_py.keeper.protocol import MARK_INSTANCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.keeper.children import HeldChild
    from supervisord_py.keeper.loop import Loop, Timer
    from supervisord_py.keeper.procfs import Process

    Done = Callable[[list[Process], bool], None]  # takes the survivors (empty: all gone) and whether KILL was needed

INIT_PID = 1
KILL_SECONDS = 5.0  # of KILL before survivors are named
FIRST_POLL_SECONDS = 0.01
POLL_SECONDS = 0.05
FIRST_POLLS = 20
KEEPS_MOVING = procfs.Process(0, 0, 0, 0, "(keeps moving)")
"""Stands for a tree that lives although none of its processes holds still to be named."""
ROUNDS = 5  # looks in one turn of the KILL phase, so that what forks between a look and a signal loses the race


class Membership:
    """Finds the processes of each instance.

    `children` (by key) and `strangers` (pids that are nobody's) are live views. With `subreaper` orphans come back to
    us, else to pid 1.
    """

    def __init__(self, children: Mapping[str, HeldChild], strangers: set[int], *, subreaper: bool) -> None:
        self._children = children
        self._strangers = strangers
        self._me = os.getpid()
        self._adopter = self._me if subreaper else INIT_PID
        self._rows: dict[int, Process] = {}
        self._families: dict[str, list[Process]] = {}
        self._last_pid: int | None = None

    def take(self) -> None:
        """Take a new snapshot of everything."""
        self._last_pid = procfs.last_pid()
        self._rows = procfs.table()
        held = [child for child in self._children.values() if child.tree_alive and child.pid]
        owners = {identity: child.key for child in held for identity in child.members.items()}
        owners |= {child.identity: child.key for child in held}
        self._families = assign(self._rows, owners, self._adopter, self._strangers | {self._me}, self._marked)
        for child in held:
            child.members = {row.pid: row.start_time for row in self._families.get(child.key, [])}

    def catch_up(self) -> None:
        """Take a new snapshot if anything was forked since the last one."""
        newest = procfs.last_pid()
        if newest is None or newest != self._last_pid:
            self.take()

    def members(self, child: HeldChild) -> list[Process]:
        """Return the live processes of an instance's tree: now, where it has a group; else as of the last snapshot.

        Empty: nothing of it lives.
        """
        if child.group is not None and child.group.populated():
            found = [procfs.look(pid) for pid in child.group.members()]
            return [row for row in found if row is not None and row.alive] or [KEEPS_MOVING]
        return [row for row in self._families.get(child.key, []) if row.alive and child.tree_alive]

    def member_pids(self, child: HeldChild) -> list[int]:
        """Return the pids of an instance's tree, without looking at each."""
        if child.group is not None:
            return child.group.members()
        return [row.pid for row in self.members(child)]

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
        found = [child.key for child in held if child.key == mark] + [c.key for c in held if c.pid == row.pgid]
        return next(iter(found), None)


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

    __slots__ = ("child", "kill_by", "kill_seconds", "killed", "polls", "term_until", "termed", "waiters")

    def __init__(self, child: HeldChild, term_until: float, kill_seconds: float) -> None:
        self.child = child
        self.term_until = term_until
        self.kill_seconds = kill_seconds
        self.kill_by = 0.0
        self.killed = False
        self.polls = 0
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
        child.stopping = True
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
            fresh = any(stop.polls < FIRST_POLLS for stop in self._stops.values())
            # A look at a crowded machine may cost more than the pause: spend at most a quarter of the time looking.
            cost = self._loop.now() - began
            self._arm(max(FIRST_POLL_SECONDS if fresh else POLL_SECONDS, 3 * cost))

    def _step(self, stop: TreeStop, now: float) -> None:
        child = stop.child
        stop.polls += 1
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
            self._finish(stop, left)

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

    def _finish(self, stop: TreeStop, survivors: list[Process]) -> None:
        del self._stops[stop.child.key]
        stop.child.stopping = bool(survivors)
        for done in stop.waiters:
            done(survivors, stop.killed)


def kill_all(child: HeldChild, members: list[Process]) -> None:
    """SIGKILL every given member, and the instance's cgroup or process group as a whole."""
    if child.group is not None:
        child.group.kill()
    elif child.exit is None and child.pid > 0:
        # Not reaped yet, so the number still is our leader's and names its group.
        with contextlib.suppress(OSError):  # empty already, or (macOS) only zombies are in it
            os.killpg(child.pid, signal.SIGKILL)
    for row in members:
        procfs.send(row, signal.SIGKILL)
