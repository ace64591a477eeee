"""Who belongs to which instance right now: by cgroup where there is one, else by descent and by mark.

One snapshot of the process table serves all that ask in the same moment. A leader is its instance's; what was ours
stays ours, by identity, also when its parents are gone; a child is its parent's; an orphan that came back to whoever
adopts is told by the mark in its environment.
"""

from __future__ import annotations

import os

from supervisord_py.keeper import processes
from supervisord_py.keeper.protocol import MARK_INSTANCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.processes import Process

    Identity = tuple[int, int]

INIT_PID = 1
_MARK = MARK_INSTANCE.encode()


class Census:
    """Counts the people.

    Args:
        instances: The living registry, by key.
        strangers: The living set of pids that are nobody's (keeper, control plane).
        subreaper: Orphans come back to us; otherwise to pid 1.
    """

    __slots__ = ("_families", "_instances", "_last_pid", "_me", "_rows", "_strangers", "_subreaper")

    def __init__(self, instances: Mapping[str, Instance], strangers: set[int], *, subreaper: bool) -> None:
        self._instances = instances
        self._strangers = strangers
        self._subreaper = subreaper
        self._me = os.getpid()
        self._rows: dict[int, Process] = {}
        self._families: dict[str, list[Process]] = {}
        self._last_pid: int | None = None

    def take(self) -> None:
        """Take a new snapshot of everything."""
        self._last_pid = processes.last_pid()
        self._rows = processes.table()
        held = [instance for instance in self._instances.values() if instance.tree_alive and instance.pid]
        owners = {(pid, start): one.key for one in held for pid, start in one.members.items()}
        owners |= {instance.identity: instance.key for instance in held}
        adopter = self._me if self._subreaper else INIT_PID
        self._families = assign(self._rows, owners, adopter, self._strangers | {self._me}, self._marked)
        for instance in held:
            instance.members = {row.pid: row.start_time for row in self._families.get(instance.key, [])}

    def catch_up(self) -> None:
        """Take a new snapshot if anything was forked since the last one."""
        newest = processes.last_pid()
        if newest is None or newest != self._last_pid:
            self.take()

    def members(self, instance: Instance) -> list[Process]:
        """Return the live processes of an instance's tree: now, on the cgroup rung; else as of the last snapshot."""
        if instance.group is not None and instance.group.populated():
            found = [processes.look(pid) for pid in instance.group.members()]
            return [row for row in found if row is not None and row.alive]
        return [row for row in self._families.get(instance.key, []) if row.alive]

    def empty(self, instance: Instance) -> bool:
        """Say whether nothing of the tree lives; a list of members may be empty only because its pids keep moving."""
        if instance.group is not None and instance.group.populated():
            return False
        return not any(row.alive for row in self._families.get(instance.key, []))

    def rename(self, before: str, after: str) -> None:
        """Go on with what the last snapshot says of an instance under its new key."""
        if before in self._families:
            self._families[after] = self._families.pop(before)

    def member_pids(self, instance: Instance) -> list[int]:
        """Return the pids of an instance's tree, without looking at each."""
        if instance.group is not None:
            return instance.group.members()
        return [row.pid for row in self._families.get(instance.key, []) if row.alive]

    def descendants(self) -> list[Process]:
        """Return every live descendant of this process but the strangers, in a new snapshot; the keeper's last look."""
        self.take()
        ours = assign(self._rows, {}, self._me, self._strangers | {self._me}, lambda _: "")
        return [row for row in ours.get("", []) if row.alive]

    def _marked(self, row: Process) -> str | None:
        """Return the key of the instance whose mark is in the environment of an orphan."""
        if not row.alive:
            return None
        mark = processes.environment(row.pid).get(_MARK, b"").decode("ascii", "replace")
        if mark in self._instances:
            return mark
        return next((key for key, instance in self._instances.items() if instance.born == mark), None)


def assign(
    rows: Mapping[int, Process],
    owners: Mapping[Identity, str],
    adopter: int,
    strangers: set[int],
    orphan: Callable[[Process], str | None],
) -> dict[str, list[Process]]:
    """Return the processes of each key, zombies included, in no order. Pure but for `orphan`.

    Args:
        rows: The process table, by pid.
        owners: Key by identity of each leader, reaped or not, and of every process assigned before.
        adopter: pid that orphans come back to: the keeper, or 1 where there is no subreaper.
        strangers: pids that are nobody's.
        orphan: Says the key of a child of the adopter, or None; it may be slow.
    """
    found: dict[int, str | None] = dict.fromkeys(strangers)
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
    families: dict[str, list[Process]] = {}
    for pid, row in rows.items():
        key = found.get(pid)
        if key is not None:
            families.setdefault(key, []).append(row)
    return families
