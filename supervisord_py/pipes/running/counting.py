"""What an end means for its pipe: failures in a row, the last success. Pure.

Law: only what an execution itself came to counts: a cancelled one, and one that the daemon's own end cut off, neither
fails its pipe nor heals it. A failure that will be tried again by itself is not one yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.ledger.pipe_state import StateChange
from supervisord_py.pipes.execution import ErrorType, Status

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.execution import Execution, Outcome

_NOT_ITS_OWN = frozenset((ErrorType.CANCELLED, ErrorType.SHUTDOWN, ErrorType.INTERRUPTED))


def counted(row: PipeStateRow, execution: Execution, outcome: Outcome, now: float, *, goes_on: bool) -> StateChange:
    """Return what becomes of the pipe's state.

    Args:
        row: What was known of the pipe.
        execution: That has ended.
        outcome: How.
        now: Unix seconds.
        goes_on: Another try follows by itself.
    """
    pipe = execution.pipe_name
    if outcome.status is Status.COMPLETED:
        end = execution.context_end
        return StateChange(pipe_name=pipe, last_success_at=now, consecutive_failures=0, last_context_end=end)
    if outcome.error_type in _NOT_ITS_OWN or goes_on:
        return StateChange(pipe_name=pipe)
    return StateChange(pipe_name=pipe, consecutive_failures=row.consecutive_failures + 1)


def is_incomplete(outcome: Outcome) -> bool:
    """Say whether what it wrote may be half-done: it was cut off, by us or by a crash."""
    if outcome.status in {Status.TIMED_OUT, Status.CANCELLED}:
        return True
    return outcome.error_type in {
        ErrorType.CRASH,
        ErrorType.INTERRUPTED,
        ErrorType.SHUTDOWN,
        ErrorType.BUDGET_EXCEEDED,
        ErrorType.RESOURCE_LIMIT,
    }
