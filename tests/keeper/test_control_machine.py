"""When a control plane is started, asked, killed and started again: decided without a process."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisord_py.keeper.control_machine import (
    FREE_FAILURES,
    HEALTHY_SECONDS,
    KILL_AGAIN_SECONDS,
    LEAVE_SECONDS,
    START_SECONDS,
    TRANSITIONS,
    WITH_PROCESS,
    Action,
    ControlMachine,
    ControlState,
    pause_after,
)

INITIAL_SECONDS = 0.2
CAP_SECONDS = 20.0


def machine(**changes: float) -> ControlMachine:
    figures = {
        "ping_seconds": 10.0,
        "hang_seconds": 30.0,
        "backoff_initial_seconds": INITIAL_SECONDS,
        "backoff_max_seconds": CAP_SECONDS,
    }
    return ControlMachine(**{**figures, **changes})


def serving(now: float = 0.0, **changes: float) -> ControlMachine:
    control = machine(**changes)
    assert control.step(now, is_needed=True) is Action.START
    control.started(now)
    control.said_hello(now)
    return control


def test_the_first_deaths_cost_no_pause_then_pauses_double_up_to_the_cap() -> None:
    assert [pause_after(failures, 0.5, 4.0) for failures in range(1, 9)] == [
        0,
        0,
        0,
        0.5,
        1.0,
        2.0,
        4.0,
        4.0,
    ]
    assert pause_after(5000, 0.5, 4.0) == 4.0, "nothing overflows after a night of failures"


def test_a_refused_start_pauses_also_after_a_planned_end() -> None:
    """A fork that fails is no reason to try again at once: that would be thousands of tries a
    second.
    """
    control = serving()
    control.leaving(1.0, is_planned=True)
    control.ended(2.0)
    assert control.step(2.0, is_needed=True) is Action.START
    now = 2.0
    for _ in range(20):
        control.start_failed(now)
        assert control.deadline is not None
        assert control.deadline >= now + INITIAL_SECONDS
        assert control.step(now, is_needed=True) is None
        now = control.deadline
        assert control.step(now, is_needed=True) is Action.START
    assert control.pause_seconds == CAP_SECONDS


def test_a_planned_end_is_followed_at_once_twice_in_a_row() -> None:
    control = serving()
    for now in (10.0, 20.0):
        control.leaving(now, is_planned=True)
        control.ended(now + 1)
        assert control.step(now + 1, is_needed=True) is Action.START
        control.started(now + 1)
        control.said_hello(now + 1)
    assert control.failures == 0


def test_a_long_life_counts_as_health() -> None:
    control = serving()
    for _ in range(FREE_FAILURES + 2):
        control.ended(1.0)
        control.step(1e6, is_needed=True)
        control.step(2e6, is_needed=True)
        control.started(1.0)
    control.ended(1.0 + HEALTHY_SECONDS)
    assert control.failures == 1


@pytest.mark.parametrize(
    ("prepare", "seconds", "action"),
    [
        (lambda control: None, START_SECONDS, Action.KILL_UNSTARTED),
        (lambda control: control.leaving(0.0, is_planned=True), LEAVE_SECONDS, Action.KILL_LATE),
        (
            lambda control: control.leaving(0.0, is_planned=False, seconds=0.0),
            0.0,
            Action.KILL_LATE,
        ),
    ],
)
def test_what_is_late_is_killed_again_and_again(
    prepare: Callable[[ControlMachine], None], seconds: float, action: Action
) -> None:
    control = machine()
    control.step(0.0, is_needed=True)
    control.started(0.0)
    prepare(control)
    if seconds:
        assert control.step(seconds - 0.1, is_needed=True) is None
    assert control.step(seconds, is_needed=True) is action
    assert control.step(seconds + KILL_AGAIN_SECONDS, is_needed=True) is Action.KILL_LATE
    assert control.step(seconds + 2 * KILL_AGAIN_SECONDS, is_needed=True) is Action.KILL_LATE


def test_unanswered_pings_kill_and_an_answer_begins_anew() -> None:
    control = serving()
    for _ in range(3):
        assert control.deadline is not None
        assert control.step(control.deadline, is_needed=True) is Action.PING
    control.answered(29.0)
    for _ in range(3):
        assert control.step(control.deadline, is_needed=True) is Action.PING
    assert control.step(control.deadline, is_needed=True) is Action.KILL_HUNG
    assert control.state is ControlState.LEAVING


def test_leaving_asks_nothing_of_a_process_that_is_gone() -> None:
    control = machine()
    control.leaving(1.0, is_planned=True)
    assert (control.state, control.deadline, control.is_planned) == (
        ControlState.ABSENT,
        None,
        False,
    )


def test_silence_and_life_are_counted_from_the_start() -> None:
    control = serving(5.0)
    control.answered(8.0)
    assert (control.lived_seconds(10.0), control.silent_seconds(10.0)) == (5.0, 2.0)


def test_nothing_is_started_while_none_is_needed() -> None:
    control = machine()
    assert control.step(0.0, is_needed=False) is None
    assert control.deadline is None
    control.step(0.0, is_needed=True)
    control.start_failed(0.0)
    assert control.step(1e9, is_needed=False) is None
    assert control.state is ControlState.ABSENT


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens, in whatever order: a needed control plane is never forgotten, and there
    is never a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self.control = machine()
        self.now = 0.0
        self.is_alive = False
        self.is_needed = True
        self.starts: list[float] = []

    @rule(seconds=st.floats(0, 100), refused=st.booleans())
    def time_passes(self, seconds: float, refused: bool) -> None:
        self.now += seconds
        action = self.control.step(self.now, is_needed=self.is_needed)
        if action is Action.START:
            assert not self.is_alive
            if refused:
                self.control.start_failed(self.now)
            else:
                self.starts.append(self.now)
                self.control.started(self.now)
                self.is_alive = True
        elif action is not None:
            assert self.is_alive

    @precondition(lambda self: self.is_alive)
    @rule(event=st.sampled_from(["said_hello", "answered"]))
    def it_speaks(self, event: str) -> None:
        getattr(self.control, event)(self.now)

    @precondition(lambda self: self.is_alive)
    @rule(is_planned=st.booleans(), seconds=st.floats(0, 10))
    def it_is_to_leave(self, is_planned: bool, seconds: float) -> None:
        self.control.leaving(self.now, is_planned=is_planned, seconds=seconds)

    @precondition(lambda self: self.is_alive)
    @rule()
    def it_dies(self) -> None:
        self.is_alive = False
        self.control.ended(self.now)

    @rule(is_needed=st.booleans())
    def the_need_changes(self, is_needed: bool) -> None:
        self.is_needed = is_needed

    @invariant()
    def the_state_tells_whether_there_is_a_process(self) -> None:
        assert (self.control.state in WITH_PROCESS) is self.is_alive
        assert self.control.has_process is self.is_alive

    @invariant()
    def something_will_happen(self) -> None:
        if not self.is_needed or self.control.state is ControlState.ABSENT:
            return  # the next step, which follows every event, leaves ABSENT
        assert self.control.deadline is not None
        assert math.isfinite(self.control.deadline)
        assert (
            self.control.deadline - self.now
            <= max(START_SECONDS, CAP_SECONDS, LEAVE_SECONDS) + 1e-6
        )


TestAnyOrder: Any = AnyOrder.TestCase


def test_the_table_leads_from_every_state_back_to_absent() -> None:
    for state in ControlState:
        reached = {state}
        while any(TRANSITIONS[each] - reached for each in reached):
            reached = reached.union(*(TRANSITIONS[each] for each in reached))
        assert ControlState.ABSENT in reached, state
