"""What the ends of a run mean for its pipe, and for what it wrote."""

from __future__ import annotations

import pytest

from supervisord_py.ledger.pipe_executions import ErrorType, Execution, Outcome, Status
from supervisord_py.pipes.run import CUT_OFF
from supervisord_py.pipes.scheduler import Clocks
from supervisord_py.pipes.states import PipeStates

FAILED = Outcome(Status.FAILED, ErrorType.CRASH)
DONE = Outcome(Status.COMPLETED)


@pytest.mark.parametrize(
    ("outcome", "becomes", "incomplete"),
    [
        (FAILED, 5, True),
        (Outcome(Status.FAILED, ErrorType.AUTH_FAILED), 5, False),
        (Outcome(Status.TIMED_OUT, ErrorType.TIMEOUT), 5, True),
        (DONE, 0, False),
        (Outcome(Status.CANCELLED, ErrorType.CANCELLED), 4, True),
        (Outcome(Status.FAILED, ErrorType.INTERRUPTED), 4, True),
        (Outcome(Status.FAILED, ErrorType.SHUTDOWN), 4, True),
    ],
)
def test_failures_in_a_row_are_counted_and_what_was_cut_off_may_be_half_done(
    *, outcome: Outcome, becomes: int, incomplete: bool
) -> None:
    states = PipeStates(None, Clocks())  # type: ignore[arg-type]
    states.take("p", consecutive_failures=4)
    it = Execution(id=1, pipe_name="p", context_end=5.0)
    assert "consecutive_failures" not in states.change_by(it, FAILED, 9.0, goes_on=True)
    states.take("p", **states.change_by(it, outcome, 9.0, goes_on=False))
    row = states.get("p")
    assert row.consecutive_failures == becomes
    assert (row.last_success_at, row.last_context_end) == ((9.0, 5.0) if outcome is DONE else (None, None))
    assert (outcome.error_type in CUT_OFF) is incomplete
