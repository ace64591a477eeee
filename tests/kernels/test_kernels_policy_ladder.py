"""The ladder: when each rung is due, what it costs, and that it always ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.kernels.cell import Step, Variables
from supervisord_py.kernels.config import LadderTimes
from supervisord_py.kernels.ladder import ABANDON_SECONDS, Ladder, Over, Rung

NOW = 100.0
TIMES = LadderTimes()


def hurried(ladder: Ladder) -> Ladder:
    ladder.hurried += 1
    return ladder


def climb(ladder: Ladder, *rungs: tuple[Rung, float]) -> Ladder:
    for rung, at in rungs:
        assert ladder.decide(at) is rung
        ladder.took(at, str(rung))
    return ladder


def test_an_ordinary_climb_follows_its_times() -> None:
    ladder = Ladder(TIMES, NOW)
    for rung, at in ((Rung.INTERRUPT, 0.0), (Rung.AGAIN, 1.0), (Rung.TERMINATE, 3.0), (Rung.KILL, 4.0)):
        if at:
            assert ladder.decide(NOW + at - 0.5) == NOW + at
        ladder = climb(ladder, (rung, NOW + at))
    assert ladder.decide(NOW + 4) == NOW + 4 + ABANDON_SECONDS
    assert ladder.decide(NOW + 4 + ABANDON_SECONDS) == Over(Variables.LOST, abandoned=True)


@pytest.mark.parametrize("rungs", [0, 1, 2])
def test_a_cell_that_ends_by_an_interrupt_keeps_its_variables(rungs: int) -> None:
    ladder = climb(Ladder(TIMES, NOW), *((Rung.INTERRUPT, NOW), (Rung.AGAIN, NOW + 1))[:rungs])
    assert not ladder.is_fatal
    assert ladder.decide(NOW + 1.5, cell_ended=True) == Over(Variables.KEPT)


def test_a_process_that_is_gone_kept_nothing_whatever_the_cell_said() -> None:
    ladder = climb(Ladder(TIMES, NOW), (Rung.INTERRUPT, NOW))
    assert ladder.decide(NOW, cell_ended=True, gone=True) == Over(Variables.LOST)
    assert ladder.decide(NOW, gone=True) == Over(Variables.LOST)


def test_after_a_sigterm_the_end_of_the_cell_is_not_the_end() -> None:
    ladder = climb(Ladder(TIMES, NOW), (Rung.INTERRUPT, NOW), (Rung.AGAIN, NOW + 1), (Rung.TERMINATE, NOW + 3))
    assert ladder.is_fatal
    assert ladder.decide(NOW + 3.5, cell_ended=True) == NOW + 4
    assert ladder.decide(NOW + 4, cell_ended=True) is Rung.KILL


def test_one_more_cancel_makes_the_next_rung_due_at_once_and_no_other() -> None:
    ladder = climb(Ladder(TIMES, NOW), (Rung.INTERRUPT, NOW))
    ladder.hurried += 1
    ladder = climb(ladder, (Rung.AGAIN, NOW + 0.1))
    assert ladder.decide(NOW + 0.1) == NOW + 2.1, "the next one has its usual time"
    ladder = climb(hurried(ladder), (Rung.TERMINATE, NOW + 0.2))
    assert ladder.decide(NOW + 1.0) == NOW + 1.2


def test_a_cancel_that_comes_while_a_rung_is_taken_counts_for_the_next() -> None:
    ladder = Ladder(TIMES, NOW)
    assert ladder.decide(NOW) is Rung.INTERRUPT
    hurried(ladder).took(NOW, "sigint")
    assert ladder.decide(NOW) is Rung.AGAIN


def test_a_cancel_after_the_last_rung_changes_nothing() -> None:
    rungs = ((rung, NOW + at) for rung, at in zip(Rung, (0, 1, 3, 4), strict=True))
    ladder = climb(Ladder(TIMES, NOW), *rungs)
    ladder.hurried += 1
    assert ladder.decide(NOW + 4) == NOW + 4 + ABANDON_SECONDS


def test_a_late_rung_leaves_the_next_its_time() -> None:
    ladder = climb(Ladder(TIMES, NOW), (Rung.INTERRUPT, NOW), (Rung.AGAIN, NOW + 1), (Rung.TERMINATE, NOW + 9))
    assert ladder.decide(NOW + 9.5) == NOW + 10


def test_steps_tell_what_was_done_and_when() -> None:
    ladder = Ladder(TIMES, NOW)
    ladder.took(NOW + 0.25, "sigint")
    ladder.took(NOW + 1.25, "rest_interrupt", "204")
    assert ladder.steps == (Step("sigint", 0.0), Step("rest_interrupt", 1.0, "204"))


seconds = st.floats(0, 100, allow_nan=False)


@given(
    times=st.builds(LadderTimes, seconds, seconds, seconds),
    moves=st.lists(st.tuples(st.sampled_from(["wait", "hurry", "late"]), st.floats(0, 10, allow_nan=False))),
)
def test_every_climb_ends_in_order_whatever_the_times_and_cancels(
    times: LadderTimes, moves: list[tuple[str, float]]
) -> None:
    now, ladder, lateness = NOW, Ladder(times, NOW), iter(moves)
    taken: list[Rung] = []
    for _ in range(20):
        move, by = next(lateness, ("wait", 0.0))
        if move == "hurry":
            ladder.hurried += 1
        decision = ladder.decide(now)
        match decision:
            case Rung() as rung:
                taken.append(rung)
                ladder.took(now + by, str(rung))
                now += by
            case float() as until:
                assert until > now
                now = until + (by if move == "late" else 0.0)
            case Over(variables, abandoned):
                assert (variables, abandoned) == (Variables.LOST, True)
                break
    assert taken == list(Rung)
    assert isinstance(decision, Over)
    assert [step.after_seconds for step in ladder.steps] == sorted(step.after_seconds for step in ladder.steps)
