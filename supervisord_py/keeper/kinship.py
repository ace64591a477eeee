"""Whose is which process: pure, over one snapshot of the process table.

In this order: a leader is its instance's; what was ours before stays ours; a child is its parent's; an orphan that came
back to the adopter is assigned by its session, else by what `trace` finds on it (its mark, its pipes); and one that
nothing tells about, when a single instance is left, can only be that one's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.keeper.processes import Process


class Families:
    """Assigns processes to instance keys.

    Args:
        leaders: identity of each leader, reaped or not, to its key.
        known: identity of every process assigned before to its key.
        adopter: pid that orphans come back to: the keeper, or 1 where there is no subreaper.
        strangers: pids that are nobody's: the keeper itself, the control plane.
        trace: Says the key that an orphan bears on itself, or None; called for orphans only, it may be slow.
        certain: Every child of the adopter is a descendant of ours (true for a subreaper, not for pid 1).
    """

    __slots__ = ("_adopter", "_certain", "_known", "_leaders", "_sessions", "_strangers", "_trace")

    def __init__(
        self,
        leaders: Mapping[tuple[int, int], str],
        known: Mapping[tuple[int, int], str],
        *,
        adopter: int,
        strangers: frozenset[int],
        trace: Callable[[Process], str | None],
        certain: bool,
    ) -> None:
        self._leaders = leaders
        self._known = known
        self._adopter = adopter
        self._strangers = strangers
        self._trace = trace
        self._certain = certain
        self._sessions = {pid: (key, start) for (pid, start), key in leaders.items()}

    def assign(self, rows: Mapping[int, Process]) -> dict[str, list[Process]]:
        """Return the processes of each key, zombies included, in no order."""
        owners: dict[int, str | None] = dict.fromkeys(self._strangers)
        for pid in rows:
            self._resolve(pid, rows, owners)
        families: dict[str, list[Process]] = {key: [] for key in self._leaders.values()}
        for pid, row in rows.items():
            key = owners.get(pid)
            if key is not None:
                families.setdefault(key, []).append(row)
        return families

    def _resolve(self, pid: int, rows: Mapping[int, Process], owners: dict[int, str | None]) -> None:
        """Climb to the first ancestor whose owner is told, then tell it to all on the way down."""
        way: list[int] = []
        on_way: set[int] = set()
        key: str | None = None
        while pid in rows and pid not in on_way:
            if pid in owners:
                key = owners[pid]
                break
            way.append(pid)
            on_way.add(pid)
            row = rows[pid]
            key = self._leaders.get(row.identity) or self._known.get(row.identity)
            if key is not None:
                break
            if row.ppid == self._adopter:
                key = self._orphan(row, rows)
                break
            pid = row.ppid
        for climbed in way:
            owners[climbed] = key

    def _orphan(self, row: Process, rows: Mapping[int, Process]) -> str | None:
        return self._by_session(row, rows) or self._trace(row) or self._only_one()

    def _by_session(self, row: Process, rows: Mapping[int, Process]) -> str | None:
        """A session keeps its leader's number from reuse while a member lives; before and after, it proves nothing."""
        key, start = self._sessions.get(row.sid, (None, 0))
        leader = rows.get(row.sid)
        if key is None or row.start_time < start:
            return None
        if leader is None:
            return key if self._certain else None
        return key if leader.start_time == start else None

    def _only_one(self) -> str | None:
        keys = set(self._leaders.values())
        return next(iter(keys)) if self._certain and len(keys) == 1 else None
