"""The time range of an execution: what the prompt's first line names, and which ends move it on.
Pure.

The ranges of one pipe follow each other without a gap: each begins where the last one that counts
ended, however long ago that was. A range counts once its execution has completed. That of a run by
hand does not, so that a trial at noon does not empty the evening's run; unless the pipe has no
other runs, or the caller asks for it (`advance`).
"""

from __future__ import annotations

from typing import NamedTuple

from supervisord_py.ledger.pipes import Execution, Group, Status

FIRST_SECONDS = 3600.0  # of the first run of a pipe whose schedule has no period


class TimeRange(NamedTuple):
    """From `start` to `end`, in Unix seconds."""

    start: float
    end: float


def next_range(now: float, last_end: float | None, period_seconds: float | None) -> TimeRange:
    """Return the range of an execution that is queued `now`.

    `last_end` is where the last range that counts ended, None before there is one: then the range
    is one period of the schedule, `period_seconds`, where it has a period.
    """
    if last_end is None:
        return TimeRange(now - (period_seconds or FIRST_SECONDS), now)
    # A clock that was set back leaves an end in the future: the range is empty until that is
    # reached.
    return TimeRange(min(now, last_end), now)


def range_to_repeat(retried: Execution, last_end: float | None) -> TimeRange | None:
    """Return the range of an execution that is tried again; None where `next_range` holds.

    What has been looked at already (it completed, or a later one did) keeps its own range: the next
    one would leave out just what is asked for.
    """
    if retried.context_start is None or retried.context_end is None:
        return None
    is_covered = last_end is not None and last_end >= retried.context_end
    if retried.status is not Status.COMPLETED and not is_covered:
        return None
    return TimeRange(retried.context_start, retried.context_end)


def counts(group: Group, *, runs_by_itself: bool, advance: bool) -> bool:
    """Say whether the range of an execution counts once it has completed.

    `runs_by_itself`: its pipe has a schedule or events; `advance`: the caller asks for it.
    """
    return advance or group is not Group.MANUAL or not runs_by_itself


def end_after(last_end: float | None, completed_end: float | None, now: float) -> float | None:
    """Return where the last range that counts ends, once another one that counts has completed."""
    if last_end is None:
        return completed_end
    if completed_end is None:
        return last_end
    if last_end > now:
        # The clock was wrong when this end was noted. The new one is better, even if it is earlier.
        return completed_end
    return max(last_end, completed_end)
