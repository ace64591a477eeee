"""Is a pipe due? Pure: what the clocks show and what the ledger remembers come in, a decision with its reason goes out.

Laws. Intervals go by the clock that counts suspend, and no step of the wall clock moves them; calendars go by the wall
clock. Whatever was missed, one run makes it good; a wall-clock run only within `catch_up_seconds`. A wall-clock pipe
runs only for due instants after it was first seen, enabled or edited; an interval is due at once when it never ran.
No due instant is served twice, unless the clock was wrong by more than `step_back_seconds`: what the ledger then
remembers of the future is forgotten (B4). Every decision says why.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, assert_never

from supervisord_py.pipes.scheduling.calendar_rule import CalendarRule
from supervisord_py.pipes.scheduling.cron import CronRule
from supervisord_py.pipes.scheduling.schedule import At, Calendar, Cron, Every, Manual, Schedule
from supervisord_py.pipes.scheduling.wall import span_text, time_text, zone_of

if TYPE_CHECKING:
    from supervisord_py.pipes.config import SchedulerLimits

_COUNT_MAX = 500
"""Missed runs are counted up to here: the number is for people, and the count costs time."""


@dataclass(frozen=True, slots=True)
class Now:
    """What the clocks show.

    Attributes:
        wall: Unix seconds.
        boottime: Seconds since boot, suspended ones included (`process.clock`).
        resumed_at: `boottime` of the last resume, or of the scheduler's start; None to stagger nothing.
        zone: The machine's, for schedules that name none.
    """

    wall: float
    boottime: float
    resumed_at: float | None = None
    zone: tzinfo = UTC

    def wall_of(self, boottime: float) -> float:
        """Return the wall-clock instant of a moment, as the clocks stand."""
        return self.wall - (self.boottime - boottime)

    def boottime_of(self, wall: float) -> float:
        """Return the moment of a wall-clock instant, as the clocks stand."""
        return self.boottime - (self.wall - wall)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is remembered of one pipe. Wall-clock instants are Unix seconds.

    Attributes:
        anchor_at: When it was first seen, last enabled, or its schedule last changed, whichever is latest.
        last_run_at: Start of its last run, whatever began it.
        last_due: The last due instant that was dealt with: run, or skipped because it was busy.
        occurrences: Scheduled runs so far.
        ever_ran: Whether there was a run at all.
        touched_boot, anchor_boot: The later of `last_run_at` and `last_due`, and `anchor_at`, on the clock that counts
            suspend; `settle` fills them, and whoever keeps the result is safe from steps of the wall clock.
        watermark: Due instants up to here are done with; `settle` fills it.
    """

    anchor_at: float
    last_run_at: float | None = None
    last_due: float | None = None
    occurrences: int = 0
    ever_ran: bool = False
    touched_boot: float | None = None
    anchor_boot: float | None = None
    watermark: float | None = None

    @property
    def touched(self) -> float | None:
        """When it last ran or was skipped; None for never."""
        known = [each for each in (self.last_run_at, self.last_due) if each is not None]
        return max(known) if known else None


@dataclass(frozen=True, slots=True)
class Due:
    """Run it now.

    Attributes:
        at: The latest due instant, not after now: what `last_due` becomes.
        missed: 0 when it is on time; else how many due instants went by, this one included, for which it is one run.
        why: A sentence for people.
    """

    at: float
    missed: int
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet.

    Attributes:
        until: Wall-clock instant of the next run, as the clocks stand.
        why: A sentence for people.
        decided: What was decided on the way to it (a run put off, or not made good); empty where it merely waits.
    """

    until: float
    why: str
    decided: str = ""


@dataclass(frozen=True, slots=True)
class Never:
    """It is not due by time.

    Attributes:
        why: A sentence for people.
        over: It had times, and there will be no more.
    """

    why: str
    over: bool = False


Decision = Due | Wait | Never
Rule = CronRule | CalendarRule


def decide(
    schedule: Schedule,
    progress: Progress,
    now: Now,
    limits: SchedulerLimits,
    *,
    run_on_enable: bool = True,
    delay: float = 0.0,
) -> Decision:
    """Say whether a pipe is due; a run that was missed is put off by `delay` after a resume or start (`stagger`).

    Raises:
        zoneinfo.ZoneInfoNotFoundError: The schedule's zone is gone from the machine.
    """
    known = settle(progress, now, limits)
    match schedule:
        case Manual():
            return Never("runs only by hand or by an event")
        case Every():
            decision = _interval(schedule, known, now, limits, run_on_enable=run_on_enable)
        case At():
            decision = _once(schedule, known, now, limits)
        case Cron() | Calendar():
            decision = _calendar(schedule, known, now, limits)
        case _:  # pragma: no cover - the union is closed
            assert_never(schedule)
    return _staggered(decision, now, delay) if isinstance(decision, Due) else decision


def stagger(name: str, seed: str, limits: SchedulerLimits) -> float:
    """Return the seconds by which this pipe's missed run is put off after a resume: the same for the same name."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(errors="surrogatepass"), digest_size=4).digest()
    return limits.stagger_seconds * int.from_bytes(digest) / 2**32


def settle(progress: Progress, now: Now, limits: SchedulerLimits) -> Progress:
    """Return the progress on both clocks, nothing of it in the future. What is filled already stays."""
    touched = progress.touched
    touched_boot = progress.touched_boot
    if touched_boot is None and touched is not None:
        touched_boot = now.boottime_of(min(touched, now.wall))
    anchor_boot = progress.anchor_boot
    if anchor_boot is None:
        anchor_boot = now.boottime_of(min(progress.anchor_at, now.wall))
    watermark = progress.watermark
    if watermark is None:
        watermark = min(progress.anchor_at, now.wall)
        if progress.last_due is not None:
            believable = progress.last_due <= now.wall + limits.step_back_seconds
            watermark = max(watermark, progress.last_due if believable else now.wall)
    return replace(progress, touched_boot=touched_boot, anchor_boot=anchor_boot, watermark=watermark)


def carried(old: Progress, new: Progress) -> Progress:
    """Return what the ledger says now with the moments that are known of what has not changed, to be settled again."""
    return replace(
        new,
        touched_boot=old.touched_boot if new.touched == old.touched else new.touched_boot,
        anchor_boot=old.anchor_boot if new.anchor_at == old.anchor_at else new.anchor_boot,
        watermark=None,
    )


def served(progress: Progress, due: Due, now: Now, limits: SchedulerLimits, *, ran: bool) -> Progress:
    """Return the progress after a due instant was dealt with, by a run that begins now or by none."""
    known = replace(
        progress,
        last_due=due.at,
        last_run_at=now.wall if ran else progress.last_run_at,
        ever_ran=progress.ever_ran or ran,
        occurrences=progress.occurrences + ran,
        touched_boot=now.boottime if ran else now.boottime_of(due.at),
        watermark=None,
    )
    return settle(known, now, limits)


def rule_of(schedule: Cron | Calendar, progress: Progress, zone: tzinfo) -> Rule:
    """Return the calendar of a schedule; `zone` is the machine's."""
    own = zone_of(schedule.timezone, zone)
    if isinstance(schedule, Cron):
        return CronRule(schedule.expression, own)
    begun = progress.anchor_at if schedule.starting is None else schedule.starting
    return CalendarRule(schedule, own, math.floor(begun))


def _interval(schedule: Every, known: Progress, now: Now, limits: SchedulerLimits, *, run_on_enable: bool) -> Decision:
    anchor = known.anchor_boot or 0.0
    if known.touched_boot is not None:
        due = known.touched_boot + schedule.seconds
    else:
        due = anchor + schedule.seconds if known.ever_ran else anchor
    if not run_on_enable:
        due = max(due, anchor + schedule.seconds)
    late = now.boottime - due
    if late < 0:
        until = now.wall_of(due)
        return Wait(until, f"waits for {time_text(until, now.zone, now.wall)}: every {span_text(schedule.seconds)}")
    intervals = math.floor(late / schedule.seconds)
    at = now.wall_of(due + intervals * schedule.seconds)
    if due <= anchor:
        return Due(at, 0, "first run since it was enabled or edited")
    if not intervals and late <= limits.late_seconds:
        return Due(at, 0, f"due: {span_text(schedule.seconds)} since the last start")
    return Due(at, intervals + 1, _made_good(intervals + 1, f"{intervals + 1}", late))


def _once(schedule: At, known: Progress, now: Now, limits: SchedulerLimits) -> Decision:
    text = time_text(schedule.instant, now.zone, now.wall)
    if known.last_due is not None and known.last_due >= schedule.instant:
        return Never(f"was due once, at {text}", over=True)
    stale = known.anchor_at - schedule.instant
    if stale > limits.stale_seconds:
        return Never(f"{text} was over {span_text(stale)} before it was first seen or enabled: refused", over=True)
    late = now.wall - schedule.instant
    if late < 0:
        return Wait(schedule.instant, f"waits for {text}, once")
    if late > max(limits.catch_up_seconds, limits.stale_seconds):
        return Never(f"missed {text} by {span_text(late)}: too late to be made good", over=True)
    if late <= limits.late_seconds:
        return Due(schedule.instant, 0, f"due at {text}, once")
    return Due(schedule.instant, 1, _made_good(1, "1", late))


def _calendar(schedule: Cron | Calendar, known: Progress, now: Now, limits: SchedulerLimits) -> Decision:
    if isinstance(schedule, Calendar) and _used_up(schedule, known):
        return Never(f"max_occurrences reached: {known.occurrences}", over=True)
    rule = rule_of(schedule, known, now.zone)
    watermark = known.watermark or 0.0
    following = next(rule.following(watermark), None)
    if following is None or following > now.wall:
        return _next(following, rule, now)
    latest = max(rule.latest(now.wall) or following, following)
    late = now.wall - latest
    if late > limits.catch_up_seconds:
        then = _next(next(rule.following(now.wall), None), rule, now)
        told = f"missed {time_text(latest, rule.zone, now.wall)} by {span_text(late)}, too late to be made good"
        why = f"{told}; {then.why}"
        return Wait(then.until, why, told) if isinstance(then, Wait) else replace(then, why=why)
    if late <= limits.late_seconds and following == latest:
        return Due(latest, 0, f"due at {time_text(latest, rule.zone, now.wall)}")
    missed = 1 + sum(1 for _ in takewhile(lambda at: at <= latest, islice(rule.following(following), _COUNT_MAX - 1)))
    return Due(latest, missed, _made_good(missed, f"{missed}" if missed < _COUNT_MAX else f"over {missed - 1}", late))


def _used_up(schedule: Calendar, known: Progress) -> bool:
    return schedule.max_occurrences is not None and known.occurrences >= schedule.max_occurrences


def _next(at: float | None, rule: Rule, now: Now) -> Wait | Never:
    if at is None:
        return Never("has no time to come", over=True)
    return Wait(at, f"waits for {time_text(at, rule.zone, now.wall)}")


def _made_good(missed: int, number: str, late: float) -> str:
    if missed == 1:
        return f"missed a run while off or asleep, {span_text(late)} ago: made good"
    return f"missed {number} runs while off or asleep: one made good"


def _staggered(due: Due, now: Now, delay: float) -> Decision:
    """Put off what was due before the machine came back, so that not everything starts at once."""
    if now.resumed_at is None or now.boottime_of(due.at) > now.resumed_at:
        return due
    left = now.resumed_at + delay - now.boottime
    if left <= 0:
        return due
    why = f"{due.why}, in {span_text(max(left, 1))}: starts after a resume are spread out"
    return Wait(now.wall + left, why, f"{due.why}; put off a little: starts after a resume are spread out")
