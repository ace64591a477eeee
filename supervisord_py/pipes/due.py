"""Is a pipe due? Pure: what the clocks show and what the ledger remembers come in, a decision with
its reason goes out.

Laws. Intervals go by the clock that counts suspend, and no step of the wall clock moves them;
calendars go by the wall clock. Whatever was missed, one run makes it good; a wall-clock run only
within `CATCH_UP_SECONDS`. A wall-clock pipe runs only for due instants after it was first seen,
enabled or edited; an interval is due at once when it never ran. No due instant is served twice,
unless the clock was wrong by more than `STEP_BACK_SECONDS`: what the ledger then remembers of the
future is forgotten (B4). Every decision says why.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, tzinfo
from itertools import chain, islice, pairwise, takewhile
from itertools import count as counting
from typing import TypeAlias

import msgspec

from supervisord_py.pipes.schedule import (
    At,
    Calendar,
    Cron,
    Every,
    Manual,
    Schedule,
    span_text,
    time_text,
    zone_of,
)

CATCH_UP_SECONDS = 12 * 3600.0  # a missed wall-clock run is made good within this
LATE_SECONDS = 60.0  # a start that is later than this counts as missed and made good
# A due time that was served and lies ahead of the clock by no more is not served twice; one further
# ahead comes from a clock that was wrong, and is forgotten.
STEP_BACK_SECONDS = 3600.0
_LOOK_AHEAD = 6  # due instants between which the shortest gap is looked for


class Now(msgspec.Struct, frozen=True):
    wall: float  # Unix seconds
    boottime: float  # seconds since boot, suspended ones included (`process.clock`)
    resumed_at: float = -math.inf  # `boottime` of the last resume, or of the scheduler's start
    zone: tzinfo = UTC  # the machine's, for schedules that name none
    # when (wall) the wall clock was last set, or first looked at; None for just now
    set_at: float | None = None

    def wall_of(self, boottime: float) -> float:
        return self.wall - (self.boottime - boottime)

    def boottime_of(self, wall: float) -> float:
        return self.boottime - (self.wall - wall)

    def past(self, wall: float) -> float:
        """Return what a remembered instant counts as: one that is ahead of the clock is when the
        clock was set.
        """
        if wall <= self.wall:
            return wall
        return self.wall if self.set_at is None else min(self.set_at, self.wall)


class Progress(msgspec.Struct, frozen=True):
    """What is remembered of one pipe. Wall-clock instants are Unix seconds."""

    # when it was first seen, last enabled, or its schedule last changed, whichever is latest
    anchor_at: float
    anchor_boot: float  # the same, on the clock that counts suspend
    # the last due instant that was dealt with: run, or skipped because it was busy
    last_due: float | None = None
    occurrences: int = 0  # runs by this schedule so far
    # the later of that instant and its last start, on the clock that counts suspend
    touched_boot: float | None = None


class Due(msgspec.Struct, frozen=True):
    at: float  # the latest due instant, not after now: what `last_due` becomes
    why: str  # a sentence for people


class Wait(msgspec.Struct, frozen=True):
    until: float  # wall-clock instant of the next run, as the clocks stand
    why: str  # a sentence for people


class Never(msgspec.Struct, frozen=True):
    """It is not due by time; `over` where it had times, and there will be no more."""

    why: str
    over: bool = False


Decision: TypeAlias = Due | Wait | Never


def decide(
    schedule: Schedule,
    progress: Progress,
    now: Now,
    *,
    run_on_enable: bool = True,
    delay: float = 0.0,
) -> Decision:
    """Say whether a pipe is due; a run that was missed is put off by `delay` after a resume or
    start (`stagger`).

    Raises zoneinfo.ZoneInfoNotFoundError: the schedule's zone is gone from the machine.
    """
    decision: Decision
    match schedule:
        case Manual():
            return Never("runs only by hand or by an event")
        case Every():
            decision = _interval(schedule, progress, now, run_on_enable=run_on_enable)
        case _:
            decision = _by_calendar(schedule, progress, now)
    if not isinstance(decision, Due) or now.boottime_of(decision.at) > now.resumed_at:
        return decision
    # what was due before the machine came back is spread out
    left = now.resumed_at + delay - now.boottime
    if left <= 0:
        return decision
    return Wait(
        now.wall + left,
        f"{decision.why}, in {span_text(max(left, 1))}: starts after a resume are spread out",
    )


def stagger(name: str, seed: str, over_seconds: float) -> float:
    """Return the seconds by which this pipe's missed run is put off after a resume: the same for
    the same name.
    """
    digest = hashlib.blake2b(
        f"{seed}\0{name}".encode(errors="surrogatepass"), digest_size=4
    ).digest()
    return over_seconds * int.from_bytes(digest) / 2**32


def _interval(schedule: Every, known: Progress, now: Now, *, run_on_enable: bool) -> Decision:
    anchor = known.anchor_boot
    due = anchor if known.touched_boot is None else known.touched_boot + schedule.seconds
    if not run_on_enable:
        due = max(due, anchor + schedule.seconds)
    late = now.boottime - due
    if late < 0:
        until = now.wall_of(due)
        return Wait(
            until,
            f"waits for {time_text(until, now.zone, now.wall)}: every "
            f"{span_text(schedule.seconds)}",
        )
    intervals = math.floor(late / schedule.seconds)
    at = now.wall_of(due + intervals * schedule.seconds)
    if due <= anchor:
        return Due(at, "first run since it was enabled or edited")
    if not intervals and late <= LATE_SECONDS:
        return Due(at, f"due: {span_text(schedule.seconds)} since the last start")
    return Due(at, _made_good(late))


def _by_calendar(schedule: At | Cron | Calendar, known: Progress, now: Now) -> Decision:
    if _left(schedule, known) <= 0:
        return Never(f"max_occurrences reached: {known.occurrences}", over=True)
    zone, begun, done = (
        zone_of(schedule.timezone, now.zone),
        known.anchor_at,
        now.past(known.anchor_at),
    )
    # up to here all due instants are done with; what a wrong clock did is forgotten
    if known.last_due is not None:
        is_wrong = known.last_due > now.wall + STEP_BACK_SECONDS
        done = max(done, now.past(known.last_due) if is_wrong else known.last_due)
    following, told = next(schedule.following(done, now.zone, begun), None), ""
    if following is not None and following <= now.wall:
        since = schedule.following(max(done, now.wall - CATCH_UP_SECONDS), now.zone, begun)
        latest = max(takewhile(lambda at: at <= now.wall, since), default=None)
        if latest is not None:
            late, is_late = (
                now.wall - latest,
                latest > following or now.wall - latest > LATE_SECONDS,
            )
            return Due(
                latest,
                _made_good(late) if is_late else f"due at {time_text(latest, zone, now.wall)}",
            )
        late = now.wall - following
        told = (
            f"missed {time_text(following, zone, now.wall)} by {span_text(late)}, too late to be "
            "made good; "
        )
        following = next(schedule.following(now.wall, now.zone, begun), None)
    if following is None:
        return Never(f"{told}has no time to come", over=True)
    return Wait(following, f"{told}waits for {time_text(following, zone, now.wall)}")


def _left(schedule: Schedule, known: Progress) -> float:
    most = schedule.max_occurrences if isinstance(schedule, Calendar) else None
    return math.inf if most is None else most - known.occurrences


def _made_good(late: float) -> str:
    return (
        f"missed while off or asleep, {span_text(late)} ago: one run makes it good, whatever else "
        "was missed"
    )


# -- what people ask -------------------------------------------------------------------------------


def upcoming(
    schedule: Schedule, known: Progress, now: Now, decision: Decision, count: int = 5
) -> tuple[float, ...]:
    """Return the next due instants, ascending, at most `count`, given what was decided; one that
    is due is now.
    """
    if isinstance(decision, Never):
        return ()
    first = now.wall if isinstance(decision, Due) else decision.until
    most = int(max(0, min(count, _left(schedule, known))))
    return tuple(islice(chain([first], _following(schedule, known, now, first)), most))


def period(schedule: Schedule, known: Progress, now: Now) -> float | None:
    """Return the seconds between two runs, the shortest of the next few; None when it does not
    repeat.
    """
    if isinstance(schedule, Every):
        return schedule.seconds
    found = islice(_following(schedule, known, now, now.wall), _LOOK_AHEAD)
    return min((later - earlier for earlier, later in pairwise(found)), default=None)


def _following(schedule: Schedule, known: Progress, now: Now, at: float) -> Iterator[float]:
    match schedule:
        case Manual():
            return iter(())
        case Every():
            return counting(at + schedule.seconds, schedule.seconds)
        case _:
            return schedule.following(at, now.zone, known.anchor_at)
