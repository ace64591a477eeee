"""Who may start: a line in front of each group's slots, one execution of a pipe at a time. Pure; `now` is passed in.

Law: in a line, whoever has been ready longest is first (ready = queued, and `not_before` is past; the id breaks ties),
and only its own pipe, being at work, lets others pass it. Nobody waits while a slot of his group and his pipe are free.
A slot is held from `admit` to `ended`, whatever happens in between, so nothing is started twice. After each change
call `admit`; when nothing changes, `next_deadline` says when time alone will admit somebody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import TYPE_CHECKING

from supervisord_py.ledger.pipe_executions import Group

if TYPE_CHECKING:
    from collections.abc import Collection

    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.pipes.config import SlotLimits


class Queue:
    """The lines and the slots of all groups; of an execution it counts what was true when it came.

    Args:
        limits: Slots of each group; fewer than one counts as one.

    Attributes:
        running: Who holds a slot, by id; those about to start, too.
    """

    def __init__(self, limits: SlotLimits) -> None:
        self._line: list[Execution] = []
        self._in_line: dict[int, Execution] = {}  # the same, by id
        self.running: dict[int, Execution] = {}
        self._looked_at = float("-inf")
        self._slots: dict[Group, int]
        self.resize(limits)

    def push(self, entry: Execution) -> None:
        insort(self._line, entry, key=_place)
        self._in_line[entry.id] = entry

    def adopt(self, entry: Execution) -> None:
        """Take in one that runs already; it holds a slot, even where there is none left."""
        self.running[entry.id] = entry

    def admit(self, now: float) -> tuple[int, ...]:
        """Return whom to start now, in order; each holds its slot and its pipe from here on."""
        self._looked_at = now
        free, pipes = self._free()
        admitted: dict[int, Execution] = {}
        for entry in self._line:
            is_due = entry.not_before is None or entry.not_before <= now
            if is_due and entry.pipe_name not in pipes and free[entry.group] > 0:
                free[entry.group] -= 1
                pipes.add(entry.pipe_name)
                admitted[entry.id] = entry
        self.running |= admitted
        self._leave(admitted.keys())
        return tuple(admitted)

    def ended(self, number: int) -> None:
        """Free the slot and the pipe of an execution; one that holds none has given them back already."""
        self.running.pop(number, None)

    def remove(self, number: int) -> bool:
        """Take an execution out of the line; return False where it was not in it (it may hold a slot: end it)."""
        if number not in self._in_line:
            return False
        self._leave({number})
        return True

    def resize(self, limits: SlotLimits) -> None:
        """Set the slots; where there are fewer than holders, nobody is thrown out and nobody let in."""
        slots = {Group.SCHEDULED: limits.scheduled, Group.EVENT: limits.event, Group.MANUAL: limits.manual}
        self._slots = {group: max(1, count) for group, count in slots.items()}

    def position(self, number: int) -> int | None:
        """Return the 1-based place in its group's line; None where it is in none."""
        if (entry := self._in_line.get(number)) is None:
            return None
        before = self._line[: bisect_left(self._line, _place(entry), key=_place)]
        return 1 + sum(1 for other in before if other.group is entry.group)

    def waiting(self, group: Group | None = None) -> tuple[Execution, ...]:
        return tuple(entry for entry in self._line if group in (None, entry.group))

    def next_deadline(self) -> float | None:
        """Return when `admit` will let somebody in if nothing else happens; None: never."""
        free, pipes = self._free()
        could = (entry for entry in self._line if free[entry.group] > 0 and entry.pipe_name not in pipes)
        coming = (entry.not_before for entry in could if entry.not_before is not None)
        return min((moment for moment in coming if moment > self._looked_at), default=None)

    def _leave(self, numbers: Collection[int]) -> None:
        if numbers:
            self._line = [entry for entry in self._line if entry.id not in numbers]
        for number in numbers:
            del self._in_line[number]

    def _free(self) -> tuple[dict[Group, int], set[str]]:
        """Return the free slots of each group, and the pipes that are at work."""
        held = Counter(entry.group for entry in self.running.values())
        free = {group: count - held[group] for group, count in self._slots.items()}
        return free, {entry.pipe_name for entry in self.running.values()}


def _place(entry: Execution) -> tuple[float, int]:
    ready_at = entry.queued_at if entry.not_before is None else max(entry.queued_at, entry.not_before)
    return ready_at, entry.id
