"""Hold trees to their resident limit: look in time, be sure, write the verdict down, then end them.

A tree with a grace is asked to end first (SIGTERM), and killed at once when it grows on by a further quarter meanwhile.

How often to look follows from what can happen meanwhile: memory cannot grow faster than GROWTH_BYTES_PER_SECOND, so the
next look comes before the distance to the limit could be crossed, between MIN and MAX seconds (up to FLAT seconds for a
tree far below its limit that does not grow). Shared pages count once: with more than one process, the proportional set
size confirms the sum before anything is killed. One timer serves all; there is none when no child has a limit.
"""

from __future__ import annotations

from supervisord_py.keeper import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.keeper.census import Census
    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.loop import Loop, Timer

    Over = Callable[[Instance, int, float], None]

GROWTH_BYTES_PER_SECOND = 2e9
MIN_SECONDS = 0.005
MAX_SECONDS = 0.25
FLAT_SECONDS = 1.0
FLAT_BYTES = 1 << 20
"""Growth between two looks that still counts as none."""
FURTHER = 1.25
"""Times its limit: nobody who is to end may become so large."""
COALESCE = 0.1
"""A look may come this share of its interval early, to share a wake-up."""


def interval(used: int, grown: int, limit: int) -> float:
    """Return the seconds until the next look.

    Args:
        used: Bytes resident now.
        grown: Bytes grown since the last look.
        limit: The limit in bytes.
    """
    safe = max(0, limit - used) / GROWTH_BYTES_PER_SECOND
    longest = FLAT_SECONDS if abs(grown) <= FLAT_BYTES else MAX_SECONDS
    return min(longest, max(MIN_SECONDS, safe))


class Watched:
    """One limited tree: what was last seen of it."""

    __slots__ = ("asked", "confirmed", "due", "instance", "period", "used")

    def __init__(self, instance: Instance, due: float) -> None:
        self.instance = instance
        self.due = due
        self.period = MIN_SECONDS
        self.used = 0
        self.asked = False
        self.confirmed: tuple[int, int] = (0, 0)
        """(sum of RSS, PSS) of the last confirmation: PSS grows no faster than the sum does."""


class Watchdog:
    """Looks at all limited trees.

    Args:
        loop: For its clock and timers.
        census: Finds the members of a tree.
        over: Told of a tree over its limit, with its resident bytes and the seconds in which it may end; told again,
            with none, when it grows on.
    """

    __slots__ = ("_census", "_loop", "_over", "_timer", "_watched")

    def __init__(self, loop: Loop, census: Census, over: Over) -> None:
        self._loop = loop
        self._census = census
        self._over = over
        self._watched: dict[str, Watched] = {}
        self._timer: Timer | None = None

    def watch(self, instance: Instance) -> None:
        """Look after a limited tree until it is gone."""
        self._watched[instance.key] = Watched(instance, self._loop.now() + MIN_SECONDS)
        self._arm()

    def forget(self, key: str) -> None:
        """Look no more."""
        if self._watched.pop(key, None) is not None:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched:
            due = min(one.due for one in self._watched.values())
            self._timer = self._loop.later(max(0.0, due - self._loop.now()), self._look)

    def _look(self) -> None:
        now = self._loop.now()
        due = [one for one in self._watched.values() if one.due - one.period * COALESCE <= now]
        if any(one.instance.group is None for one in due):
            self._census.catch_up()
        for one in due:
            self._look_at(one)
        self._arm()

    def _look_at(self, one: Watched) -> None:
        limit = round((one.instance.max_rss_bytes or 0) * (FURTHER if one.asked else 1.0))
        pids = self._census.member_pids(one.instance)
        total = sum(processes.resident(pid) for pid in pids)
        used = total
        if total > limit and len(pids) > 1:
            used = self._confirm(one, pids, total, limit)
        if used > limit:
            self._is_over(one, used)
        else:
            one.period = interval(used, used - one.used, limit)
        one.used = used
        one.due = self._loop.now() + one.period

    def _is_over(self, one: Watched, used: int) -> None:
        grace = one.instance.memory_grace
        if one.asked or not grace:
            self._watched.pop(one.instance.key, None)
            self._over(one.instance, used, 0.0)
        else:
            one.asked = True
            one.period = MIN_SECONDS
            self._over(one.instance, used, grace)

    def _confirm(self, one: Watched, pids: list[int], total: int, limit: int) -> int:
        """Return what the tree uses with shared pages counted once, asking the kernel only when it may be too much."""
        seen_total, seen_pss = one.confirmed
        if seen_pss and seen_pss + max(0, total - seen_total) <= limit:
            return seen_pss + max(0, total - seen_total)
        pss = 0
        for pid in pids:
            share = processes.proportional(pid)
            pss += processes.resident(pid) if share is None else share
        one.confirmed = (total, pss)
        return pss
