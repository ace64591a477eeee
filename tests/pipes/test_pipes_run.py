"""The pure parts of a run: its plan, what an end means, and what the clocks tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from supervisord_py.ledger.pipe_executions import ErrorType, Execution, Outcome, Plan, Status
from supervisord_py.pipes.config import PipesConfig
from supervisord_py.pipes.ending import CUT_OFF
from supervisord_py.pipes.intake import BY_HAND, _plan
from supervisord_py.pipes.models import PipeDefinition, RetryRules, RunLimits
from supervisord_py.pipes.run import _too_late
from supervisord_py.pipes.schedule import Manual
from supervisord_py.pipes.scheduler import Clocks
from supervisord_py.pipes.states import PipeStates

HERE = Path("/nowhere")
CONFIG = PipesConfig(HERE, HERE, HERE, HERE, HERE, "/nowhere/sock")
DEFINITION = PipeDefinition("p", HERE, HERE / "pipe.md", Manual(), "manual", "body")


def late(plan: Plan) -> str:
    return _too_late(Execution(id=1, pipe_name="p", plan=plan))


def test_a_plan_takes_the_word_of_the_run_then_of_the_pipe_then_of_the_daemon() -> None:
    plain = _plan(DEFINITION, (), BY_HAND, CONFIG)
    assert (plain.timeout_seconds, plain.max_turns, plain.retries, plain.max_cost) == (300.0, 200, 2, None)
    limits = RunLimits(turns=3, memory_bytes=9)
    pipe = structs.replace(DEFINITION, timeout_seconds=50.0, limits=limits, retries=RetryRules(0))
    own = _plan(pipe, (), BY_HAND, CONFIG)
    assert (own.timeout_seconds, own.max_turns, own.max_tokens, own.max_cost) == (50.0, 3, None, None)
    assert (own.retries, own.memory_bytes) == (0, 9)
    hurried = _plan(pipe, (), BY_HAND._replace(timeout_seconds=1e9), CONFIG)
    assert hurried.timeout_seconds == CONFIG.timeout_max_seconds
    assert hurried.warnings == ("timeout: 1e+09 s is cut to 86400 s (pipes.timeout_max_seconds)",)
    assert "pipes.timeout_max_seconds" in late(hurried)
    assert (own.warnings, late(own)) == ((), "did not end within 50 s (timeout)")


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
