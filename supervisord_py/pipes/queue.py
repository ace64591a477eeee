"""Who may start: a line in front of each group's slots, one execution of a pipe at a time. Pure;
`now` is passed in.

Law: in a line, whoever has been ready longest is first (ready = queued, and `not_before` is past;
the id breaks ties), and only its own pipe, being at work, lets others pass it. Nobody waits while a
slot of his group and his pipe are free. A slot is held from `admit` until its holder is out of
`running`, whatever happens in between, so nothing is started twice. After each change call `admit`;
when nothing changes, `next_deadline` says when to call it again.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import Literal, NamedTuple

from supervisord_py.config.settings import PipesSettings
from supervisord_py.ledger.pipes import Execution, Group


class Obstacle(NamedTuple):
    """What keeps an execution in line."""

    # its retry's time, another execution of its pipe, its group's slots
    kind: Literal["time", "pipe", "slots"]
    holders: tuple[Execution, ...] = ()  # who has what it waits for, oldest first
    group: Group = Group.MANUAL

    @property
    def words(self) -> str:
        """Say it as what follows "waits for"."""
        if self.kind == "time":
            return "its time, which a failed try before it has set"
        if self.kind == "pipe":
            return f"execution {self.holders[0].id} of the same pipe"
        named = [f"{holder.unit} (execution {holder.id})" for holder in self.holders[:_NAMED]]
        if len(self.holders) > _NAMED:
            named.append(f"{len(self.holders) - _NAMED} more")
        count = len(self.holders)
        held = "holds the only one" if count == 1 else f"hold all {count}"
        return (
            f"a slot: {' and '.join(named)} {held} of {self.group} runs (pipes.slots_{self.group})"
        )


_NAMED = 3  # so many holders of slots are named


class Queue:
    """The lines and the slots of all groups; of an execution it counts what was true when it
    came.
    """

    def __init__(self) -> None:
        self._line: list[Execution] = []
        # Who holds a slot, by id: also who is about to start, and who runs already at the start of
        # a control plane.
        self.running: dict[int, Execution] = {}
        # when time alone will admit somebody, as of the last `admit`
        self.next_deadline: float | None = None

    def push(self, entry: Execution) -> None:
        insort(self._line, entry, key=_place)

    def admit(self, now: float, settings: PipesSettings) -> tuple[int, ...]:
        """Return whom to start now, in order; each holds its slot and its pipe from here on.

        Where there are fewer slots (`slots_…`) than holders, nobody is thrown out and nobody let
        in.
        """
        held = Counter(entry.group for entry in self.running.values())
        free = {group: getattr(settings, f"slots_{group}") - held[group] for group in Group}
        pipes = {entry.pipe_name for entry in self.running.values()}
        admitted: dict[int, Execution] = {}
        for entry in self._line:
            is_due = entry.not_before is None or entry.not_before <= now
            if is_due and entry.pipe_name not in pipes and free[entry.group] > 0:
                free[entry.group] -= 1
                pipes.add(entry.pipe_name)
                admitted[entry.id] = entry
        self.running |= admitted
        if admitted:
            self._line = [entry for entry in self._line if entry.id not in admitted]
        could = (
            entry for entry in self._line if free[entry.group] > 0 and entry.pipe_name not in pipes
        )
        self.next_deadline = min(
            (entry.not_before for entry in could if entry.not_before is not None), default=None
        )
        return tuple(admitted)

    def obstacle(self, entry: Execution, now: float, settings: PipesSettings) -> Obstacle | None:
        """Return what keeps an execution in line; None where nothing does, so that the next
        `admit` starts it.
        """
        running = sorted(self.running.values(), key=lambda holder: holder.id)
        for holder in running:
            if holder.pipe_name == entry.pipe_name:
                return Obstacle("pipe", (holder,))
        if entry.not_before is not None and entry.not_before > now:
            return Obstacle("time")
        holders = tuple(holder for holder in running if holder.group is entry.group)
        if len(holders) >= getattr(settings, f"slots_{entry.group}"):
            return Obstacle("slots", holders, entry.group)
        return None

    def remove(self, number: int) -> bool:
        """Take an execution out of the line; return False where it was not in it (it may hold a
        slot: end it).
        """
        before = len(self._line)
        self._line = [entry for entry in self._line if entry.id != number]
        return len(self._line) < before

    def position(self, entry: Execution) -> int | None:
        return next(
            (place for place, it in enumerate(self.waiting(entry.group), 1) if it.id == entry.id),
            None,
        )

    def waiting(self, group: Group | None = None) -> tuple[Execution, ...]:
        return tuple(entry for entry in self._line if group in (None, entry.group))


def _place(entry: Execution) -> tuple[float, int]:
    ready_at = (
        entry.queued_at if entry.not_before is None else max(entry.queued_at, entry.not_before)
    )
    return ready_at, entry.id
