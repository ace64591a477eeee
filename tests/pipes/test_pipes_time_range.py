"""The time range of executions: one follows the other without a gap, whoever else runs the pipe
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pipe_rig import PipeRig, in_one_room
from supervisord_py.ledger.pipes import Execution, Group, Plan, Status
from supervisord_py.ledger.table import to_text
from supervisord_py.pipes.models import PublishedEvent
from supervisord_py.pipes.time_range import (
    FIRST_SECONDS,
    counts,
    end_after,
    next_range,
    range_to_repeat,
)

HOUR = 3600.0
DAY = 24 * HOUR


# -- decisions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """When an execution is queued, what is known then, and where its range begins."""

    now: float
    last_end: float | None
    period: float | None
    start: float


RANGES = {
    "follows the last one": Range(100 * HOUR, 99 * HOUR, HOUR, 99 * HOUR),
    "is as long as the daemon was away": Range(100 * DAY, 10 * DAY, HOUR, 10 * DAY),
    "first of a schedule": Range(100 * DAY, None, DAY, 99 * DAY),
    "first without a period": Range(100 * DAY, None, None, 100 * DAY - FIRST_SECONDS),
    "clock that was set back": Range(100 * DAY, 101 * DAY, DAY, 100 * DAY),
}


@pytest.mark.parametrize("case", RANGES.values(), ids=RANGES)
def test_a_range_begins_where_the_last_one_ended(case: Range) -> None:
    assert next_range(case.now, case.last_end, case.period) == (case.start, case.now)


@pytest.mark.parametrize(
    ("status", "last_end", "repeats"),
    [
        (Status.FAILED, None, False),
        (Status.FAILED, 10.0, False),
        (Status.FAILED, 20.0, True),
        (Status.TIMED_OUT, 30.0, True),
        (Status.COMPLETED, None, True),
        (Status.COMPLETED, 20.0, True),
    ],
)
def test_what_was_looked_at_already_keeps_its_range(
    status: Status, last_end: float | None, repeats: bool
) -> None:
    before = Execution(id=1, pipe_name="p", status=status, context_start=10.0, context_end=20.0)
    assert range_to_repeat(before, last_end) == ((10.0, 20.0) if repeats else None)


@pytest.mark.parametrize(
    ("group", "runs_by_itself", "advance", "expected"),
    [
        (Group.SCHEDULED, True, False, True),
        (Group.EVENT, True, False, True),
        (Group.MANUAL, True, False, False),
        (Group.MANUAL, True, True, True),
        (Group.MANUAL, False, False, True),
    ],
)
def test_whose_range_counts(
    group: Group, runs_by_itself: bool, advance: bool, expected: bool
) -> None:
    assert counts(group, runs_by_itself=runs_by_itself, advance=advance) is expected


@pytest.mark.parametrize(
    ("last_end", "completed_end", "expected"),
    [
        (None, 5.0, 5.0),
        (4.0, 5.0, 5.0),
        (5.0, 4.0, 5.0),
        (99.0, 5.0, 5.0),
        (4.0, None, 4.0),
        (None, None, None),
    ],
)
def test_the_end_never_goes_back_but_from_the_future(
    last_end: float | None, completed_end: float | None, expected: float | None
) -> None:
    assert end_after(last_end, completed_end, 10.0) == expected


# -- the room --------------------------------------------------------------------------------------


def length(execution: Execution) -> float:
    assert execution.context_start is not None
    assert execution.context_end is not None
    return execution.context_end - execution.context_start


async def happen(rig: PipeRig, name: str, count: int) -> Execution:
    """Start a pipe by its event, and return the execution, which is the pipe's so-many-th."""
    await rig.room.publish_event(PublishedEvent(f"{name}-event"))
    return (await rig.ended(name, count))[-1]


async def test_a_range_is_as_long_as_the_time_since_the_last_one_and_no_range_is_lost(
    own_rig: PipeRig,
) -> None:
    """The first one is a day, as the schedule is; the next one three days, while nothing ran."""
    own_rig.write("daily", "agent: command\ncommand: head -1\nschedule: every 24h")
    await own_rig.room.files.refresh()
    [first] = await own_rig.ended("daily")
    own_rig.time.pass_by(3 * DAY)
    own_rig.room.due_bell.set()
    _, second = await own_rig.ended("daily", 2)
    assert length(first) == pytest.approx(DAY, abs=1)
    assert second.context_start == first.context_end
    assert length(second) == pytest.approx(3 * DAY, abs=60)
    start, end = (to_text(each or 0.0) for each in (second.context_start, second.context_end))
    assert (
        await own_rig.room.execution(second.id, blobs=True)
    ).stdout == f"Time range: {start} to {end}\n"


@in_one_room
async def test_a_run_by_hand_leaves_the_range_to_the_others_unless_asked(rig: PipeRig) -> None:
    rig.shell("trial", "true", "trigger: [trial-event]")
    await rig.room.files.refresh()
    first = await happen(rig, "trial", 1)
    by_hand = await rig.run("trial")
    again = await rig.run("trial")
    assert by_hand.context_start == again.context_start == first.context_end
    after = await happen(rig, "trial", 4)
    assert after.context_start == first.context_end
    asked = await rig.run("trial", triggers=[{"advance": True}])
    assert asked.context_start == after.context_end
    assert (await rig.run("trial")).context_start == asked.context_end


@in_one_room
async def test_a_pipe_that_runs_by_hand_alone_goes_on_from_its_last_run(rig: PipeRig) -> None:
    rig.shell("by-hand", "true")
    first = await rig.run("by-hand")
    assert (await rig.run("by-hand")).context_start == first.context_end


@in_one_room
async def test_a_failure_moves_no_range_and_its_retry_has_all_of_it(
    rig: PipeRig, tmp_path: Path
) -> None:
    rig.shell("fails", f"[ -e {tmp_path}/well ]", "trigger: [fails-event]\nretries: 0")
    await rig.room.files.refresh()
    failed = await happen(rig, "fails", 1)
    (tmp_path / "well").touch()
    retried = await rig.room.wait((await rig.room.retry(failed.id)).id)
    assert (failed.status, retried.status) == (Status.FAILED, Status.COMPLETED)
    assert retried.context_end == retried.queued_at
    following = await happen(rig, "fails", 3)
    assert following.context_start == retried.context_end
    # What was looked at already is looked at again, whole, and moves nothing.
    same = await rig.room.wait((await rig.room.retry(retried.id)).id)
    assert (same.context_start, same.context_end) == (retried.context_start, retried.context_end)
    assert (await happen(rig, "fails", 5)).context_start == following.context_end


def test_rows_of_an_earlier_version_count() -> None:
    assert Plan().range_counts
