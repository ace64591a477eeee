"""`schedule_config` on the calendar: every so many units from an origin, at a reading of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.pipes.scheduling.calendar_rule import CalendarRule
from supervisord_py.pipes.scheduling.schedule import Calendar, Frequency

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: tzinfo = UTC) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def rule(frequency: Frequency, *, origin: str = "2026-11-21T12:00", zone: tzinfo = UTC, **members: Any) -> CalendarRule:
    return CalendarRule(Calendar(frequency, **members), zone, int(at(origin, zone)))


def series(of: CalendarRule, start: float, count: int = 4) -> list[str]:
    found = (datetime.fromtimestamp(each, of.zone) for each in islice(of.following(start), count))
    return [each.strftime("%a %Y-%m-%d %H:%M%z").removesuffix("+0000") for each in found]


@pytest.mark.parametrize(
    ("of", "want"),
    [
        (
            rule(Frequency.DAYS, interval=3, at_hour=9, at_minute=30),
            ["Tue 2026-11-24 09:30", "Fri 2026-11-27 09:30", "Mon 2026-11-30 09:30"],
        ),
        (  # The first wanted day is the origin: every multiple of a week stays on it.
            rule(Frequency.DAYS, interval=7, days_of_week=(1,), at_hour=9),
            ["Mon 2026-11-23 09:00", "Mon 2026-11-30 09:00", "Mon 2026-12-07 09:00"],
        ),
        (
            rule(Frequency.DAYS, interval=2, days_of_week=(1, 2), at_hour=9),
            ["Mon 2026-11-23 09:00", "Tue 2026-12-01 09:00", "Mon 2026-12-07 09:00"],
        ),
        (
            rule(Frequency.WEEKS, interval=2, days_of_week=(1, 5), at_hour=9),
            ["Mon 2026-11-23 09:00", "Fri 2026-11-27 09:00", "Mon 2026-12-07 09:00"],
        ),
        (  # Without a day it is the origin's, a Saturday.
            rule(Frequency.WEEKS, at_hour=13),
            ["Sat 2026-11-21 13:00", "Sat 2026-11-28 13:00", "Sat 2026-12-05 13:00"],
        ),
        (
            rule(Frequency.MONTHS, day_of_month=31, at_hour=9),
            ["Mon 2026-11-30 09:00", "Thu 2026-12-31 09:00", "Sun 2027-01-31 09:00", "Sun 2027-02-28 09:00"],
        ),
        (rule(Frequency.MONTHS, interval=5, at_hour=9), ["Wed 2027-04-21 09:00", "Tue 2027-09-21 09:00"]),
        (rule(Frequency.HOURS, interval=6), ["Sat 2026-11-21 12:00", "Sat 2026-11-21 18:00", "Sun 2026-11-22 00:00"]),
        (
            rule(Frequency.HOURS, interval=6, days_of_week=(1,)),
            ["Mon 2026-11-23 00:00", "Mon 2026-11-23 06:00", "Mon 2026-11-23 12:00", "Mon 2026-11-23 18:00"],
        ),
        (
            rule(Frequency.MINUTES, interval=25, days_of_week=(6,), origin="2026-11-21T23:00"),
            ["Sat 2026-11-21 23:00", "Sat 2026-11-21 23:25", "Sat 2026-11-21 23:50", "Sat 2026-11-28 00:00"],
        ),
        (  # What the zone leaves out comes as much later as the clock was set.
            rule(Frequency.DAYS, at_hour=2, at_minute=30, origin="2026-03-28T00:00", zone=BERLIN),
            ["Sat 2026-03-28 02:30+0100", "Sun 2026-03-29 03:30+0200", "Mon 2026-03-30 02:30+0200"],
        ),
    ],
)
def test_a_series_from_its_origin(of: CalendarRule, want: list[str]) -> None:
    assert series(of, of.begun - 1, len(want)) == want


def test_nothing_before_the_origin_and_nothing_after_the_end() -> None:
    of = rule(Frequency.DAYS, at_hour=9, ending=at("2026-11-23T09:00"))
    assert series(of, 0.0) == ["Sun 2026-11-22 09:00", "Mon 2026-11-23 09:00"]
    assert of.latest(at("2026-11-22T08:00")) is None
    assert of.latest(at("2026-11-20T00:00")) is None
    assert of.latest(at("2027-01-01T00:00")) == at("2026-11-23T09:00")
    hours = rule(Frequency.HOURS, interval=5, days_of_week=(1,), ending=at("2026-11-24T00:00"))
    assert hours.latest(at("2026-11-22T00:00")) is None
    assert hours.latest(at("2026-12-22T00:00")) == at("2026-11-23T20:00")
    assert series(hours, at("2026-11-23T20:00")) == []
    mondays = rule(Frequency.HOURS, interval=5, days_of_week=(1,))
    assert mondays.latest(at("2026-11-26T00:00")) == at("2026-11-23T20:00")


PLANS = st.builds(
    Calendar,
    frequency=st.sampled_from(list(Frequency)),
    interval=st.integers(1, 40),
    days_of_week=st.sets(st.integers(0, 6), max_size=3).map(lambda days: tuple(sorted(days))),
    day_of_month=st.none() | st.integers(1, 31),
    at_hour=st.integers(0, 23),
    at_minute=st.integers(0, 59),
)


@given(PLANS, st.integers(1_700_000_000, 1_900_000_000), st.integers(0, 40_000_000), st.sampled_from([UTC, BERLIN]))
def test_following_and_latest_are_each_others_inverse(plan: Calendar, origin: int, later: int, zone: tzinfo) -> None:
    if plan.frequency is Frequency.MONTHS:
        plan = Calendar(plan.frequency, plan.interval, (), plan.day_of_month, plan.at_hour, plan.at_minute)
    of = CalendarRule(plan, zone, origin)
    instants = list(islice(of.following(float(origin + later)), 3))
    assert len(instants) == 3
    for at_ in instants:
        day = datetime.fromtimestamp(at_, zone)
        assert at_ >= origin
        assert not plan.days_of_week or day.isoweekday() % 7 in plan.days_of_week
        assert of.latest(at_) == at_
    for earlier, following in pairwise(instants):
        assert earlier < following
        assert of.latest(following - 1) == earlier
