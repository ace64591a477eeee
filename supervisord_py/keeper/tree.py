"""The kill ladder: TERM (then CONT) to the whole tree, a grace, KILL until nothing is left.

*Stopped* means that the tree is empty, not that its leader was reaped (DESIGN §4, law 2). Zombies do not count. The
stops of all instances share one timer and one snapshot of the process table; the stops of one instance share one
ladder, on which the shortest grace wins. What is still there after `kill_seconds` of KILL is named, never forgotten.

Rungs: "cgroup" kills by one write to the instance's own group, so that a pid that keeps moving cannot escape, then
looks once more for processes that left the group; "subreaper" and "process_group" kill what the census finds, again
and again, the latter with the leader's process group first.
"""

from __future__ import annotations

import contextlib
import os
import signal

from supervisord_py.keeper import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.keeper.census import Census
    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.loop import Loop, Timer
    from supervisord_py.keeper.processes import Process

    Done = Callable[[list[Process], bool], None]
    """Takes the survivors (empty: all gone) and whether KILL was needed."""

FIRST_POLL_SECONDS = 0.01
POLL_SECONDS = 0.05
FIRST_POLLS = 20
ROUNDS = 5
"""Looks in one turn of the KILL phase, so that what forks between a look and a signal loses the race."""


class Stop:
    """One instance on its way down. Deadlines are monotonic seconds."""

    __slots__ = ("instance", "kill_by", "kill_seconds", "killed", "polls", "term_until", "termed", "waiters")

    def __init__(self, instance: Instance, term_until: float, kill_seconds: float) -> None:
        self.instance = instance
        self.term_until = term_until
        self.kill_seconds = kill_seconds
        self.kill_by = 0.0
        self.killed = False
        self.polls = 0
        self.termed: set[tuple[int, int]] = set()
        """Who was asked to end."""
        self.waiters: list[Done] = []


class Ladder:
    """All stops under way.

    Args:
        loop: For its clock and timers.
        census: Finds the members of a tree.
        reap: Reaps an instance's leader if it has ended.
        close: Told of an instance whose leader is reaped and whose tree is empty.
    """

    __slots__ = ("_census", "_close", "_looked", "_loop", "_reap", "_stops", "_timer")

    def __init__(
        self,
        loop: Loop,
        census: Census,
        reap: Callable[[Instance], None],
        close: Callable[[Instance], None],
    ) -> None:
        self._loop = loop
        self._census = census
        self._reap = reap
        self._close = close
        self._looked = False
        self._stops: dict[str, Stop] = {}
        self._timer: Timer | None = None

    def stop(self, instance: Instance, grace: float, kill_seconds: float, done: Done) -> None:
        """Begin, or join, the stop of an instance.

        Args:
            instance: Whose tree is to go.
            grace: Seconds between TERM and KILL; 0 kills at once.
            kill_seconds: How long to go on killing before survivors are named.
            done: Called once.
        """
        if not instance.tree_alive:
            done([], False)
            return
        now = self._loop.now()
        stop = self._stops.get(instance.key)
        if stop is None:
            instance.stopping = True
            stop = self._stops[instance.key] = Stop(instance, now + grace, kill_seconds)
        stop.term_until = min(stop.term_until, now + grace)
        stop.waiters.append(done)
        self.hurry()

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
        if not self._stops:
            return
        fresh = any(stop.polls < FIRST_POLLS for stop in self._stops.values())
        # A look at a crowded machine may cost more than the pause: never spend more than a quarter of the time looking.
        cost = self._loop.now() - began
        self._arm(max(FIRST_POLL_SECONDS if fresh else POLL_SECONDS, 3 * cost))

    def _step(self, stop: Stop, now: float) -> None:
        stop.polls += 1
        left = self._remaining(stop.instance)
        empty = self._census.empty(stop.instance)
        if not empty and now >= stop.term_until:
            left = self._kill(stop, left, now)
        elif left:
            self._terminate(stop, left)
        self._reap(stop.instance)
        if empty and stop.instance.exit is not None:
            self._close(stop.instance)
        if not stop.instance.tree_alive:
            self._finish(stop, [])
        elif not empty and stop.killed and now >= stop.kill_by:
            self._finish(stop, left or [unseen(stop.instance)])

    def _remaining(self, instance: Instance) -> list[Process]:
        # An empty group does not end the search: what moved itself out of it (root may) is found by mark and descent.
        if not self._looked and not in_group(instance):
            self._looked = True  # one snapshot serves all stops of a turn
            self._census.take()
        return self._census.members(instance)

    def _terminate(self, stop: Stop, members: list[Process]) -> None:
        # What a member that was asked before starts now is how it ends: it is asked only if that leaves it behind.
        ending = {row.pid for row in members if row.identity in stop.termed}
        for row in members:
            if row.identity not in stop.termed and row.ppid not in ending:
                stop.termed.add(row.identity)
                processes.send(row, signal.SIGTERM)
                processes.send(row, signal.SIGCONT)  # a stopped process takes no TERM before it goes on

    def _kill(self, stop: Stop, members: list[Process], now: float) -> list[Process]:
        if not stop.killed:
            stop.killed = True
            stop.kill_by = now + stop.kill_seconds
            stop.instance.escalate()
        for _ in range(ROUNDS):
            kill_all(stop.instance, members)
            fresh = {row.identity for row in members}
            if not in_group(stop.instance):
                self._census.take()
            members = self._census.members(stop.instance)
            if not any(row.identity not in fresh for row in members):
                break
        return members

    def _finish(self, stop: Stop, survivors: list[Process]) -> None:
        del self._stops[stop.instance.key]
        stop.instance.stopping = bool(survivors)
        for done in stop.waiters:
            done(survivors, stop.killed)


def unseen(instance: Instance) -> Process:
    """Return what stands for a tree that lives although none of its processes holds still to be named."""
    row = processes.Process(instance.pid, 0, 0, instance.start_time)
    row.name = "(keeps moving)"
    return row


def in_group(instance: Instance) -> bool:
    """Say whether the instance's own cgroup knows all of it at this moment."""
    return instance.group is not None and instance.group.populated()


def kill_all(instance: Instance, members: list[Process]) -> None:
    """SIGKILL every given member, and the instance's cgroup or process group as a whole."""
    if instance.group is not None:
        instance.group.kill()
    elif instance.exit is None and instance.pidfd < 0 and instance.pid > 0:
        # Not reaped yet, so the number still is our leader's and names its group (no pidfd: the portable rung).
        with contextlib.suppress(OSError):  # empty already, or (macOS) only zombies are in it
            os.killpg(instance.pid, signal.SIGKILL)
    for row in members:
        processes.send(row, signal.SIGKILL)
