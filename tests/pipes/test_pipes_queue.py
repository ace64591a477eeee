"""The queue of executions: against a model that knows no cleverness."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from supervisord_py.config.settings import PipesSettings
from supervisord_py.ledger.pipes import Execution, Group
from supervisord_py.pipes.queue import Queue

LATER = st.sampled_from((None, None, -2.0, 0.0, 4.0, 9.0))


class QueueMachine(RuleBasedStateMachine):
    """Everything that can happen, in any order; the model answers each question by going through
    all it knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slots = {Group.SCHEDULED: 1, Group.EVENT: 1, Group.MANUAL: 2}
        self.queue, self.now, self.next_id = Queue(), 0.0, 1
        self.waiting: dict[int, Execution] = {}
        self.holding: dict[int, Execution] = {}

    def line(self) -> list[Execution]:
        def place(it: Execution) -> tuple[float, int]:
            return (
                it.queued_at if it.not_before is None else max(it.queued_at, it.not_before)
            ), it.id

        return sorted(self.waiting.values(), key=place)

    def may_start(self, one: Execution) -> bool:
        held = list(self.holding.values())
        free = sum(it.group is one.group for it in held) < self.slots[one.group]
        return (
            free
            and one.pipe_name not in {it.pipe_name for it in held}
            and (one.not_before or 0.0) <= self.now
        )

    def admitted(self) -> tuple[int, ...]:
        """Start one, look again from the front of the line, until nobody may start."""
        found = []
        while (one := next(filter(self.may_start, self.line()), None)) is not None:
            self.holding[one.id] = self.waiting.pop(one.id)
            found.append(one.id)
        return tuple(found)

    def start(self, now: float) -> tuple[int, ...]:
        return self.queue.admit(
            now, PipesSettings(**{f"slots_{group}": count for group, count in self.slots.items()})
        )

    # -- what can happen ---------------------------------------------------------------------------

    @rule(pipe=st.sampled_from("abcd"), group=st.sampled_from(Group), ago=st.sampled_from((0.0, 3.0)), later=LATER,
          runs=st.sampled_from((False, False, False, True)))  # fmt: skip
    # drawn
    def come(self, pipe: str, group: Group, ago: float, later: float | None, runs: bool) -> None:
        at, number, self.next_id = self.now - ago, self.next_id, self.next_id + 1
        not_before = None if later is None else self.now + later
        entry = Execution(
            id=number, pipe_name=pipe, group=group, queued_at=at, not_before=not_before
        )
        if runs:
            self.queue.running[number] = self.holding[number] = entry
        else:
            self.waiting[number] = entry
            self.queue.push(entry)

    @rule(seconds=st.sampled_from((0.0, 1.0, 5.0)))
    def admit(self, seconds: float) -> None:
        self.now += seconds
        assert self.start(self.now) == self.admitted()
        assert self.start(self.now) == ()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.waiting, *self.holding, 999]))
        assert self.queue.remove(number) is (number in self.waiting)
        self.queue.running.pop(number, None)
        self.waiting.pop(number, None)
        self.holding.pop(number, None)

    @rule(slots=st.fixed_dictionaries({group: st.integers(1, 3) for group in Group}))
    def resize(self, slots: dict[Group, int]) -> None:
        self.slots = slots

    @rule()
    def sleep_until_the_deadline(self) -> None:
        """Time alone admits somebody exactly at the deadline, and nobody before it."""
        assert self.start(self.now) == self.admitted()
        deadline = self.queue.next_deadline
        if deadline is None:
            self.now += 1e6
            assert self.start(self.now) == ()
            return
        assert deadline > self.now
        assert self.start((self.now + deadline) / 2) == ()
        self.now = deadline
        found = self.start(self.now)
        assert found
        assert found == self.admitted()

    @invariant()
    def everybody_is_where_the_model_says(self) -> None:
        assert list(self.queue.waiting()) == self.line()
        assert dict(self.queue.running) == self.holding
        for group in Group:
            ours = [entry for entry in self.line() if entry.group is group]
            assert [self.queue.position(entry) for entry in ours] == list(range(1, len(ours) + 1))
        assert {self.queue.position(it) for it in self.holding.values()} <= {None}

    @invariant()
    def what_cannot_start_has_an_obstacle_and_names_who_is_in_its_way(self) -> None:
        settings = PipesSettings(**{f"slots_{group}": count for group, count in self.slots.items()})
        for entry in self.waiting.values():
            obstacle = self.queue.obstacle(entry, self.now, settings)
            assert (obstacle is None) is self.may_start(entry)
            for holder in obstacle.holders if obstacle else ():
                assert self.holding[holder.id] is holder


TestQueueMachine = QueueMachine.TestCase


def test_an_obstacle_in_words() -> None:
    line = Queue()
    settings = PipesSettings(slots_scheduled=1)

    def scheduled(number: int, pipe: str, not_before: float | None = None) -> Execution:
        return Execution(id=number, pipe_name=pipe, group=Group.SCHEDULED, not_before=not_before)

    def words(entry: Execution, slots: PipesSettings = settings) -> str | None:
        obstacle = line.obstacle(entry, 5.0, slots)
        return obstacle and obstacle.words

    assert words(scheduled(9, "b")) is None
    assert words(scheduled(9, "b", 6.0)) == "its time, which a failed try before it has set"
    line.running[1] = scheduled(1, "a")
    assert words(scheduled(9, "a", 6.0)) == "execution 1 of the same pipe"
    end = "of scheduled runs (pipes.slots_scheduled)"
    assert words(scheduled(9, "b")) == f"a slot: pipe:a (execution 1) holds the only one {end}"
    for number in range(2, 6):
        line.running[number] = scheduled(number, f"p{number}")
    first = (
        "a slot: pipe:a (execution 1) and pipe:p2 (execution 2) and pipe:p3 (execution 3) and 2 "
        "more hold all 5"
    )
    assert words(scheduled(9, "b"), PipesSettings(slots_scheduled=5)) == f"{first} {end}"
