"""The queue of executions: against a model that knows no cleverness."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisord_py.config.settings import PipesSettings
from supervisord_py.ledger.pipes import Execution, Group
from supervisord_py.pipes.queue import Queue


@dataclass
class Known:
    """One execution as the model sees it."""

    entry: Execution
    waits: bool


class QueueMachine(RuleBasedStateMachine):
    """Everything that can happen, in any order; the model answers each question by going through all it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = {Group.SCHEDULED: 1, Group.EVENT: 1, Group.MANUAL: 2}
        self.queue = Queue()
        self.known: dict[int, Known] = {}
        self.now = 0.0
        self.next_id = 1

    # -- the model -------------------------------------------------------------------------------------------------

    def holders(self) -> list[Known]:
        return [it for it in self.known.values() if not it.waits]

    def line(self) -> list[Known]:
        waiting = [it for it in self.known.values() if it.waits]
        return sorted(waiting, key=lambda it: (self.ready_at(it.entry), it.entry.id))

    @staticmethod
    def ready_at(entry: Execution) -> float:
        return entry.queued_at if entry.not_before is None else max(entry.queued_at, entry.not_before)

    def may_start(self, one: Known) -> bool:
        held = self.holders()
        used = sum(it.entry.group is one.entry.group for it in held)
        free = used < self.slots[one.entry.group] and all(it.entry.pipe_name != one.entry.pipe_name for it in held)
        return free and (one.entry.not_before or 0.0) <= self.now

    def admitted(self) -> tuple[int, ...]:
        """Start one, look again from the front of the line, until nobody may start."""
        found = []
        while (one := next((it for it in self.line() if self.may_start(it)), None)) is not None:
            one.waits = False
            found.append(one.entry.id)
        return tuple(found)

    def any_id(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*self.known, 999]))

    def start(self, now: float) -> tuple[int, ...]:
        return self.queue.admit(now, PipesSettings(**{f"slots_{group}": count for group, count in self.slots.items()}))

    # -- what can happen -------------------------------------------------------------------------------------------

    @rule(
        pipe=st.sampled_from("abcd"),
        group=st.sampled_from(Group),
        ago=st.sampled_from((0.0, 3.0)),
        later=st.sampled_from((None, None, -2.0, 0.0, 4.0, 9.0)),
        runs=st.sampled_from((False, False, False, True)),
    )
    def come(self, pipe: str, group: Group, ago: float, later: float | None, runs: bool) -> None:  # drawn
        not_before = None if later is None else self.now + later
        now = self.now
        entry = Execution(id=self.next_id, pipe_name=pipe, group=group, queued_at=now - ago, not_before=not_before)
        self.next_id += 1
        self.known[entry.id] = Known(entry, waits=not runs)
        if runs:
            self.queue.running[entry.id] = entry
        else:
            self.queue.push(entry)

    @rule(seconds=st.sampled_from((0.0, 1.0, 5.0)))
    def admit(self, seconds: float) -> None:
        self.now += seconds
        assert self.start(self.now) == self.admitted()
        assert self.start(self.now) == ()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = self.any_id(data)
        self.queue.running.pop(number, None)
        if number in self.known and not self.known[number].waits:
            del self.known[number]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = self.any_id(data)
        waits = number in self.known and self.known[number].waits
        assert self.queue.remove(number) is waits
        if waits:
            del self.known[number]

    @rule(slots=st.fixed_dictionaries({group: st.integers(1, 3) for group in Group}))
    def resize(self, slots: dict[Group, int]) -> None:
        self.slots = slots

    @rule()
    def sleep_until_the_deadline(self) -> None:
        """Time alone admits somebody exactly at the deadline, and nobody before it."""
        assert self.start(self.now) == self.admitted()
        deadline = self.queue.next_deadline
        if deadline is None:
            assert self.start(self.now + 1e6) == ()
            self.now += 1e6
            return
        assert deadline > self.now
        assert self.start((self.now + deadline) / 2) == ()
        self.now = deadline
        found = self.start(self.now)
        assert found
        assert found == self.admitted()

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def everybody_is_where_the_model_says(self) -> None:
        line = [it.entry for it in self.line()]
        assert list(self.queue.waiting()) == line
        assert dict(self.queue.running) == {it.entry.id: it.entry for it in self.holders()}
        for group in Group:
            ours = [entry for entry in line if entry.group is group]
            assert [self.queue.position(entry) for entry in ours] == list(range(1, len(ours) + 1))
        assert {self.queue.position(it.entry) for it in self.holders()} <= {None}


TestQueueMachine = QueueMachine.TestCase
