"""Who belongs to which instance right now: by cgroup where there is one, else by kinship over the process table.

One snapshot serves all instances that ask in the same moment. Membership is remembered by identity, so that a process
stays ours after its parents are gone; the memory is pruned with every snapshot.
"""

from __future__ import annotations

import os

from supervisord_py.keeper import processes
from supervisord_py.keeper.kinship import Families
from supervisord_py.keeper.protocol import MARK_INSTANCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.processes import Process

INIT_PID = 1
NEW_PIDS_MAX = 64
"""More forks than this between two looks and the whole table is read again."""
CATCH_UPS = 3
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
        for _ in range(CATCH_UPS):  # what was forked behind the reader's back, while it read
            if not self._add_new():
                break
        self._assign()

    def catch_up(self) -> None:
        """Take in what was forked since the last snapshot; cheap when that is little or nothing."""
        newest = processes.last_pid()
        if newest is None or self._last_pid is None or not 0 <= newest - self._last_pid <= NEW_PIDS_MAX:
            self.take()
        elif self._add_new():
            self._assign()

    def _add_new(self) -> int:
        """Add the processes forked since the last look; return how many pids were given away meanwhile."""
        newest = processes.last_pid()
        if newest is None or self._last_pid is None:
            return 0
        given = range(self._last_pid + 1, newest + 1)
        for pid in given:
            row = processes.look(pid) if processes.is_process(pid) else None
            if row is not None:
                self._rows[pid] = row
        self._last_pid = newest
        return len(given)

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
        nobodys = self._strangers | {self._me}
        return [row for row in self._rows.values() if row.alive and row.pid not in nobodys and self._descends(row)]

    def _descends(self, row: Process) -> bool:
        seen: set[int] = set()
        while row.ppid not in seen:
            if row.ppid == self._me:
                return True
            if row.ppid in self._strangers or row.ppid not in self._rows:
                return False
            seen.add(row.ppid)
            row = self._rows[row.ppid]
        return False

    def _assign(self) -> None:
        held = [instance for instance in self._instances.values() if instance.tree_alive and instance.pid]
        known = {(pid, start): one.key for one in held for pid, start in one.members.items()}
        families = Families(
            {instance.identity: instance.key for instance in held},
            known,
            adopter=self._me if self._subreaper else INIT_PID,
            strangers=frozenset(self._strangers | {self._me}),
            trace=self._trace,
            certain=self._subreaper,
        )
        self._families = families.assign(self._rows)
        for instance in held:
            instance.members = {row.pid: row.start_time for row in self._families.get(instance.key, [])}

    def _trace(self, row: Process) -> str | None:
        """Find what an orphan bears: our mark in its environment, or one of our pipes among its standard streams."""
        if not row.alive:
            return None
        mark = processes.environment(row.pid).get(_MARK, b"").decode("ascii", "replace")
        if mark in self._instances:
            return mark
        for key, instance in self._instances.items():
            if instance.born == mark:
                return key
        return self._by_pipe(row.pid) if self._subreaper else None

    def _by_pipe(self, pid: int) -> str | None:
        held = set()
        for number in (1, 2):
            try:
                held.add(os.stat(f"/proc/{pid}/fd/{number}").st_ino)
            except OSError:
                continue
        if not held:
            return None
        for instance in self._instances.values():
            for outlet in instance.outlets:
                if outlet.fd >= 0 and os.fstat(outlet.fd).st_ino in held:
                    return instance.key
        return None
