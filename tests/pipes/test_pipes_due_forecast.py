"""What people ask: when next, how often, why, and is it too slow for its schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from supervisord_py.pipes.config import SchedulerLimits
from supervisord_py.pipes.scheduling.due import Now, Progress, Wait, stagger
from supervisord_py.pipes.scheduling.forecast import explain, period, slower, upcoming
from supervisord_py.pipes.scheduling.schedule import At, Calendar, Cron, Every, Frequency, Manual

LIMITS = SchedulerLimits()
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
NOW = Now(NOON, 5000.0)
SEEN = Progress(NOON)
RAN = Progress(NOON - 7200, last_run_at=NOON - 600, last_due=NOON - 600, ever_ran=True)
HOUR, DAY = 3600.0, 86400.0


def test_the_next_runs() -> None:
    assert upcoming(Every(HOUR), SEEN, NOW, LIMITS, count=3) == (NOON, NOON + HOUR, NOON + 2 * HOUR)
    assert upcoming(Every(HOUR), SEEN, NOW, LIMITS, count=2, run_on_enable=False) == (NOON + HOUR, NOON + 2 * HOUR)
    assert upcoming(Every(HOUR), RAN, NOW, LIMITS, count=2) == (NOON + 3000, NOON + 6600)
    assert upcoming(Cron("0 9 * * *"), SEEN, NOW, LIMITS, count=2) == (NOON + 21 * HOUR, NOON + 45 * HOUR)
    assert upcoming(At(NOON + 5), SEEN, NOW, LIMITS) == (NOON + 5,)
    assert upcoming(Manual(), SEEN, NOW, LIMITS) == ()
    twice = Calendar(Frequency.DAYS, at_hour=9, max_occurrences=3)
    assert upcoming(twice, Progress(NOON, occurrences=1), NOW, LIMITS) == (NOON + 21 * HOUR, NOON + 45 * HOUR)
    until = Calendar(Frequency.DAYS, at_hour=9, ending=NOON + DAY)
    assert upcoming(until, SEEN, NOW, LIMITS) == (NOON + 21 * HOUR,)


def test_the_period_is_the_shortest_gap() -> None:
    """The window of a first prompt, and what a run may take."""
    assert period(Every(HOUR), SEEN, NOW) == HOUR
    assert period(Cron("0 9,10 * * *"), SEEN, NOW) == HOUR
    assert period(Calendar(Frequency.WEEKS, days_of_week=(1, 2)), SEEN, NOW) == DAY
    assert period(At(NOON + 5), SEEN, NOW) is None
    assert period(Manual(), SEEN, NOW) is None
    assert period(Calendar(Frequency.DAYS, at_hour=9, ending=NOON + DAY), SEEN, NOW) is None


def test_a_pipe_that_is_slower_than_its_schedule_is_warned_about() -> None:
    """E5."""
    assert slower(Every(600), SEEN, NOW, None) is None
    assert slower(Every(600), SEEN, NOW, 600) is None
    assert slower(Manual(), SEEN, NOW, 600) is None
    assert slower(Every(600), SEEN, NOW, 725) == (
        "slower than its schedule: a run takes 12 min 5 s on average and is due every 10 min; the runs in between are "
        "skipped"
    )


def test_the_whole_story() -> None:
    berlin = Now(NOON, 5000.0, zone=ZoneInfo("Europe/Berlin"))
    assert explain(Cron("30 13 * * *"), SEEN, berlin, LIMITS, count=2) == (
        "schedule: at 13:30 every day (local time)",
        "now: waits for 13:30 CET",
        "next: 13:30 CET",
        "next: Sun 2026-11-22 13:30 CET",
    )
    assert explain(Every(600), RAN, NOW, LIMITS, count=1, average_seconds=900) == (
        "schedule: every 10 min, from start to start",
        "now: due: 10 min since the last start",
        "next: 12:00 UTC",
        (
            "warning: slower than its schedule: a run takes 15 min on average and is due every 10 min; the runs in "
            "between are skipped"
        ),
    )


def test_what_the_scheduler_waits_for_is_what_comes_next() -> None:
    put_off = Wait(NOON + 7, "missed 3 runs while off or asleep: one made good, in 7 s")
    assert upcoming(Every(600), RAN, NOW, LIMITS, count=2, decided=put_off) == (NOON + 7, NOON + 607)
    assert explain(Every(600), RAN, NOW, LIMITS, count=1, decided=put_off)[1:] == (
        "now: missed 3 runs while off or asleep: one made good, in 7 s",
        "next: 12:00:07 UTC",
    )


def test_the_stagger_is_of_the_name_and_the_machine_and_within_its_bound() -> None:
    delays = [stagger(f"pipe-{each}", "seed", LIMITS) for each in range(200)]
    assert delays == [stagger(f"pipe-{each}", "seed", LIMITS) for each in range(200)]
    assert all(0 <= each < 30 for each in delays)
    assert min(delays) < 3
    assert max(delays) > 27
    assert stagger("pipe-1", "other", LIMITS) != delays[1]
    assert stagger("x", "", replace(LIMITS, stagger_seconds=0.0)) == 0
