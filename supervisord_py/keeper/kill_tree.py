"""The end of whole trees: TERM, a grace, KILL until nothing is left.

*Stopped* means that the tree is empty, not that its leader was reaped. Zombies do not count. The
stops of one instance share one escalation, on which the shortest grace wins. What is still there
after `kill_seconds` of KILL is named, never forgotten, and so is a tree that cannot be looked at.

A cgroup is killed by one write, so that a pid that keeps moving cannot escape; then what left the
group is looked for. Without one, what is found is killed again and again, the leader's process
group first.

Nothing here depends on a timer: `reconcile` runs at the end of every turn of the loop and does what
is due. A look that fails (no descriptor, no memory) is repeated; it never counts as "gone".
"""

from __future__ import annotations

import contextlib
import os
import signal

from supervisord_py.keeper import procfs
from supervisord_py.keeper.procfs import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.keeper.loop import Loop
    from supervisord_py.keeper.tree import HeldChild, Membership

    Done = Callable[[list[Process], bool], None]
    """Takes the survivors (empty: all gone) and whether KILL was needed."""

KILL_SECONDS = 5.0
"""Of KILL before survivors are named."""
POLL_SECONDS = 0.05
"""Between two looks, beside those that an ended process causes."""
LOOKING_SHARE = 3
"""A look at a crowded machine may cost more than the pause: pause at least so many times as long
as it took.
"""
ROUNDS = 5
"""Looks in one turn of the KILL phase, so that what forks between a look and a signal loses the
race.
"""
CANNOT_LOOK = Process(0, 0, 0, 0, "(cannot be looked at)")
"""Stands for what may be left of a tree while the process table or its group cannot be read."""


class TreeStop:
    """One tree on its way down. Deadlines are monotonic seconds."""

    def __init__(self, child: HeldChild, term_until: float, kill_seconds: float) -> None:
        self.child = child
        self.term_until = term_until
        self.kill_seconds = kill_seconds
        self.kill_by: float | None = None  # when survivors are named; None during the grace
        self.killed = False  # something had to be killed
        self.termed: set[tuple[int, int]] = set()  # identities that were asked to end
        self.waiters: list[Done] = []


class KillTree:
    """All stops under way. `reap_leader` and `close` are those of the holder of the children."""

    def __init__(
        self,
        membership: Membership,
        loop: Loop,
        reap_leader: Callable[[HeldChild], None],
        close: Callable[[HeldChild], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._membership = membership
        self._loop = loop
        self._reap_leader = reap_leader
        self._close = close
        self._on_error = on_error
        self._stops: dict[str, TreeStop] = {}
        self._look_at = 0.0  # when the next look is due
        self._has_looked = False  # in this turn

    def stop(self, child: HeldChild, grace: float, kill_seconds: float, done: Done) -> None:
        """Begin, or join, the stop of an instance; `done` is called once.

        Seconds are `grace`, between TERM and KILL (0 kills at once), and `kill_seconds`, before
        survivors are named.
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
        """Look again at once: something has ended, or is to end."""
        self._look_at = 0.0
        if self._stops:
            self._loop.wake()

    def reconcile(self, now: float) -> float | None:
        if not self._stops:
            return None
        if now < self._look_at:
            return self._look_at
        # Set before anything can fail: a look that raises is repeated after the pause.
        self._look_at = now + POLL_SECONDS
        self._has_looked = False
        for stop in list(self._stops.values()):
            self._advance(stop)
        pause = max(POLL_SECONDS, LOOKING_SHARE * (self._loop.now() - now))
        self._look_at = self._loop.now() + pause
        return self._look_at if self._stops else None

    def _advance(self, stop: TreeStop) -> None:
        """Take one stop as far as it goes now. A failure of one stop leaves the others alone."""
        try:
            left = self._step(stop)
        except OSError as error:
            self._on_error(error)
            left = [CANNOT_LOOK]
        now = self._loop.now()
        is_given_up = bool(left) and stop.kill_by is not None and now >= stop.kill_by
        if stop.child.tree_alive and not is_given_up:
            return
        if not stop.child.tree_alive:
            left = []  # it is closed; a look that failed afterwards says nothing
        del self._stops[stop.child.key]
        for done in stop.waiters:
            try:
                done(left, stop.killed)
            # the other waiters, and the other stops, are owed their answers
            except Exception as error:
                self._on_error(error)

    def _step(self, stop: TreeStop) -> list[Process]:
        """Signal what is there and due; return what is left.

        Raises OSError when that cannot be seen.
        """
        child = stop.child
        now = self._loop.now()
        if now >= stop.term_until and stop.kill_by is None:
            # Noted first: this deadline stands, whatever fails below.
            stop.kill_by = now + stop.kill_seconds
        self._look(child)
        left = self._membership.members(child)
        if left and stop.kill_by is not None:
            left = self._kill(stop, left)
        else:
            self._terminate(stop, left)
        self._reap_leader(child)
        if not left and child.exit is not None:
            self._close(child)
        return left

    def _look(self, child: HeldChild) -> None:
        """Take one snapshot a turn for all stops that need it."""
        # An empty group does not end the search: what moved itself out of it (root may) is found by
        # mark and descent.
        if self._has_looked or (child.group is not None and child.group.populated()):
            return
        self._membership.take()
        self._has_looked = True

    @staticmethod
    def _terminate(stop: TreeStop, members: list[Process]) -> None:
        # What a member that was asked before starts now is how it ends: it is asked only if that
        # leaves it behind.
        ending = {row.pid for row in members if row.identity in stop.termed}
        for row in members:
            if row.identity in stop.termed or row.ppid in ending:
                continue
            if not procfs.send(row, signal.SIGTERM):
                continue  # gone, or the signal failed: then the next look tries again
            procfs.send(row, signal.SIGCONT)  # a stopped process takes no TERM before it goes on
            stop.termed.add(row.identity)

    def _kill(self, stop: TreeStop, members: list[Process]) -> list[Process]:
        stop.killed = True
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
    """SIGKILL a whole tree: its group, its leader's process group, and each member."""
    if child.group is not None:
        child.group.kill()
    elif child.exit is None and child.pid > 0:
        # Not reaped yet, so the number still is our leader's and names its group.
        with contextlib.suppress(OSError):  # empty already, or (macOS) only zombies are in it
            os.killpg(child.pid, signal.SIGKILL)
    for row in members:
        procfs.send(row, signal.SIGKILL)
