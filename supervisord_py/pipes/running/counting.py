"""What an end means for its pipe: failures in a row, the last success, who is to be told. Pure.

Law: only what an execution itself came to counts: a cancelled one, and one that the daemon's own end cut off, neither
fails its pipe nor heals it. A failure that will be tried again by itself is not one yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisord_py.ledger.pipe_state import StateChange
from supervisord_py.pipes.execution import ErrorType, Status

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.definition import HookRules
    from supervisord_py.pipes.execution import Execution, Outcome

_NOT_ITS_OWN = frozenset((ErrorType.CANCELLED, ErrorType.SHUTDOWN, ErrorType.INTERRUPTED))


class NoticeKind(StrEnum):
    """What somebody is told."""

    FAILING = "failing"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell; `failures` in a row."""

    kind: NoticeKind
    failures: int


@dataclass(frozen=True, slots=True)
class Count:
    """What becomes of the pipe's state, and who is to be told."""

    change: StateChange
    notice: Notice | None = None


def counted(
    row: PipeStateRow, execution: Execution, outcome: Outcome, now: float, rules: HookRules | None, *, goes_on: bool
) -> Count:
    """Return what an end means.

    Args:
        row: What was known of the pipe.
        execution: That has ended.
        outcome: How.
        now: Unix seconds.
        rules: Of the pipe's hooks.
        goes_on: Another try follows by itself.
    """
    pipe = execution.pipe_name
    if outcome.error_type in _NOT_ITS_OWN or (goes_on and outcome.status is not Status.COMPLETED):
        return Count(StateChange(pipe_name=pipe))
    if outcome.status is Status.COMPLETED:
        end = execution.context_end
        change = StateChange(
            pipe_name=pipe, last_success_at=now, consecutive_failures=0, notified=False, last_context_end=end
        )
        told = Notice(NoticeKind.RECOVERED, row.consecutive_failures) if row.notified else None
        return Count(change, told)
    failures = row.consecutive_failures + 1
    if rules is None or failures % max(1, rules.after):
        return Count(StateChange(pipe_name=pipe, consecutive_failures=failures))
    change = StateChange(pipe_name=pipe, consecutive_failures=failures, notified=True)
    return Count(change, Notice(NoticeKind.FAILING, failures))


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
