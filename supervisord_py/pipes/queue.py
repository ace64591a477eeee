"""Who may start: a line in front of each group's slots, one execution of a pipe at a time. Pure; `now` is passed in.

Law: in a line, whoever has been ready longest is first (ready = queued, and `not_before` is past; the id breaks ties),
and only its own pipe, being at work, lets others pass it. Nobody waits while a slot of his group and his pipe are free.
A slot is held from `admit` to `ended`, whatever happens in between, so nothing is started twice. After each change
call `admit`; when nothing changes, `next_deadline` says when time alone will admit somebody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from supervisord_py.ledger.pipe_executions import Group

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from supervisord_py.pipes.config import SlotLimits


class Waiting(msgspec.Struct, frozen=True):
    """An execution in line. Times are on the clock that `admit` is asked with."""

    id: int  # of the execution
    pipe: str  # name of its pipe
    group: Group  # whose slots it waits for
    queued_at: float  # when it was triggered
    not_before: float | None = None  # it may not start earlier; None = at once

    @property
    def ready_at(self) -> float:
        """Since when it could start, or from when on it can."""
        return self.queued_at if self.not_before is None else max(self.queued_at, self.not_before)


class Queue:
    """The lines and the slots of all groups.

    Args:
        limits: Slots of each group; fewer than one counts as one.
    """

    def __init__(self, limits: SlotLimits) -> None:
        self._line: list[Waiting] = []
        self._in_line: dict[int, Waiting] = {}  # the same, by id
        self._holders: dict[int, Waiting] = {}
        self._looked_at = float("-inf")
        self._slots: dict[Group, int]
        self.resize(limits)

    # -- what happens ----------------------------------------------------------------------------------------------

    def push(self, entry: Waiting) -> None:
        """Put an execution in line. Raises ValueError: it is in line, or holds a slot."""
        self._check_new(entry)
        insort(self._line, entry, key=_place)
        self._in_line[entry.id] = entry

    def adopt(self, entry: Waiting) -> None:
        """Take in one that runs already; it holds a slot, even where there is none left.

        Raises ValueError: it is in line, or holds a slot.
        """
        self._check_new(entry)
        self._holders[entry.id] = entry

    def admit(self, now: float) -> tuple[int, ...]:
        """Return whom to start now, in order; each holds its slot and its pipe from here on."""
        self._looked_at = now
        room, pipes = self._room(), self._held_pipes()
        admitted: dict[int, Waiting] = {}
        for entry in self._line:
            is_due = entry.not_before is None or entry.not_before <= now
            if is_due and entry.pipe not in pipes and room[entry.group] > 0:
                room[entry.group] -= 1
                pipes.add(entry.pipe)
                admitted[entry.id] = entry
        self._holders |= admitted
        self._leave(admitted.keys())
        return tuple(admitted)

    def ended(self, number: int) -> None:
        """Free the slot and the pipe of an execution; one that holds none has given them back already."""
        self._holders.pop(number, None)

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

    # -- what is ---------------------------------------------------------------------------------------------------

    def position(self, number: int) -> int | None:
        """Return the 1-based place in its group's line; None where it is in none."""
        entry = self._in_line.get(number)
        if entry is None:
            return None
        before = self._line[: bisect_left(self._line, _place(entry), key=_place)]
        return 1 + sum(1 for other in before if other.group is entry.group)

    def waiting(self, group: Group | None = None) -> tuple[Waiting, ...]:
        """Return the line of one group, or all, in order."""
        return tuple(entry for entry in self._line if group in (None, entry.group))

    @property
    def running(self) -> Mapping[int, Waiting]:
        """Who holds a slot, by id; those about to start, too."""
        return MappingProxyType(self._holders)

    def next_deadline(self) -> float | None:
        """Return when `admit` will let somebody in if nothing else happens; None: never."""
        room, pipes = self._room(), self._held_pipes()
        free = (entry for entry in self._line if room[entry.group] > 0 and entry.pipe not in pipes)
        coming = (entry.not_before for entry in free if entry.not_before is not None)
        return min((moment for moment in coming if moment > self._looked_at), default=None)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_new(self, entry: Waiting) -> None:
        if entry.id in self._holders or entry.id in self._in_line:
            raise ValueError(f"execution {entry.id} is known already")

    def _leave(self, numbers: Collection[int]) -> None:
        if numbers:
            self._line = [entry for entry in self._line if entry.id not in numbers]
        for number in numbers:
            del self._in_line[number]

    def _room(self) -> dict[Group, int]:
        held = Counter(entry.group for entry in self._holders.values())
        return {group: count - held[group] for group, count in self._slots.items()}

    def _held_pipes(self) -> set[str]:
        return {entry.pipe for entry in self._holders.values()}


def _place(entry: Waiting) -> tuple[float, int]:
    return (entry.ready_at, entry.id)
