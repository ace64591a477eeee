"""Hold trees to their resident limit: look in time, be sure, write the verdict down, then end them.

A tree with a grace is asked to end first (SIGTERM), and killed at once when it grows on by a
further quarter meanwhile.

How often to look: memory hardly grows faster than GROWTH_BYTES_PER_SECOND, so the next look comes
before the distance to the limit could be crossed, between MIN and MAX seconds. A tree far below its
limit that does not grow is looked at less and less often, down to every QUIET_SECONDS. Shared pages
count once: with more than one process, the proportional set size confirms the sum before anything
is killed. `reconcile` runs at the end of every turn of the loop, and returns when it wants to be
called again; not at all when no child has a limit.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisord_py.keeper import procfs
from supervisord_py.keeper.tree import HeldChild, Membership

GROWTH_BYTES_PER_SECOND = 2e9
MIN_SECONDS = 0.005
MAX_SECONDS = 0.25
QUIET_SECONDS = 5.0
QUIET_GROWTH = 1.5
QUIET_BYTES = 1 << 20  # growth between two looks that still counts as none
FURTHER = 1.25  # times its limit: nobody who is to end may become so large
EARLY = 0.5  # a look may come this share of its period early, to share a wake-up


def interval(used: int, grown: int, limit: int, before: float) -> float:
    """Return the seconds until the next look, from bytes used and grown, and the seconds between
    the last two.
    """
    safe = max(MIN_SECONDS, max(0, limit - used) / GROWTH_BYTES_PER_SECOND)
    if abs(grown) > QUIET_BYTES or used > limit / 2:
        return min(MAX_SECONDS, safe)
    return min(QUIET_SECONDS, max(safe, before * QUIET_GROWTH))


class Watched:
    def __init__(self, child: HeldChild, due: float) -> None:
        self.child = child
        self.due = due
        self.period = MIN_SECONDS
        self.used = 0
        self.asked = False
        self.total = self.pss = 0
        """Sum of RSS, and PSS, of the last confirmation: PSS grows no faster than the sum does."""


class MemoryWatch:
    """Looks at all limited trees.

    `over` is told of a tree over its limit, with its resident bytes and the seconds in which it may
    end; it is told again, with none, when the tree grows on.
    """

    def __init__(
        self,
        now: Callable[[], float],
        membership: Membership,
        over: Callable[[HeldChild, int, float], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._now = now
        self._membership = membership
        self._over = over
        self._on_error = on_error
        self._watched: dict[str, Watched] = {}

    def watch(self, child: HeldChild) -> None:
        self._watched.setdefault(child.key, Watched(child, self._now() + MIN_SECONDS))

    def forget(self, child: HeldChild) -> None:
        self._watched.pop(child.key, None)

    def reconcile(self, now: float) -> float | None:
        if any(one.due <= now for one in self._watched.values()):
            self._look(now)
        return min((one.due for one in self._watched.values()), default=None)

    def _look(self, now: float) -> None:
        due = [one for one in self._watched.values() if one.due - one.period * EARLY <= now]
        for one in due:
            # Set before anything can fail: a look that raises is repeated after the pause.
            one.due = now + max(one.period, MIN_SECONDS)
        if any(one.child.group is None for one in due):
            self._membership.catch_up()
        for one in due:
            try:
                self._look_at(one)
            except OSError as error:  # that tree cannot be measured now; the others can
                one.due = now + MAX_SECONDS
                self._on_error(error)

    def _look_at(self, one: Watched) -> None:
        child = one.child
        limit = round((child.max_rss_bytes or 0) * (FURTHER if one.asked else 1.0))
        pids = [row.pid for row in self._membership.members(child)]
        used = sum(procfs.resident(pid) for pid in pids)
        if used > limit and len(pids) > 1:
            used = self._confirmed(one, pids, used, limit)
        if used <= limit:
            one.period = interval(used, used - one.used, limit, one.period)
        elif one.asked or not child.memory_grace:
            del self._watched[child.key]
            self._over(child, used, 0.0)
        else:
            one.asked = True
            one.period = MIN_SECONDS
            self._over(child, used, child.memory_grace)
        one.used = used
        one.due = self._now() + one.period

    def _confirmed(self, one: Watched, pids: list[int], total: int, limit: int) -> int:
        """Return what the tree uses with shared pages counted once, asking the kernel only when
        it may be too much.
        """
        most = one.pss + max(0, total - one.total)
        if one.pss and most <= limit:
            return most
        shares = [(procfs.proportional(pid), pid) for pid in pids]
        one.total, one.pss = (
            total,
            sum(procfs.resident(pid) if pss is None else pss for pss, pid in shares),
        )
        return one.pss
