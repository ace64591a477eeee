"""Cron on the calendar: field by field, by the law of clocks that are set, and against a second implementation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import example, given
from hypothesis import strategies as st

from supervisord_py.pipes.scheduling.cron_fields import line_of, normalised
from supervisord_py.pipes.scheduling.cron_rule import CronRule
from supervisord_py.pipes.scheduling.schedule import ScheduleError
from supervisord_py.pipes.scheduling.wall import (
    due_at,
    earliest_reading,
    furthest_reading,
    instant_of,
    reading,
    span_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

BERLIN, NEW_YORK, LORD_HOWE = (ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"))
ZONES = (BERLIN, NEW_YORK, LORD_HOWE)
"""One hour in spring and autumn, the same on other days, and half an hour on the other half of the globe."""


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def shown(instant: float, zone: tzinfo = UTC) -> str:
    return datetime.fromtimestamp(instant, zone).strftime("%a %Y-%m-%d %H:%M:%S%z")


def series(rule: CronRule, start: float, count: int) -> list[float]:
    found: list[float] = []
    instant: float | None = start
    while len(found) < count and (instant := rule.after(instant or start)) is not None:
        found.append(instant)
    return found


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0 9 * * mon-fri", "0 9 * * 1-5"),
        ("0 9 * * sat-sun", "0 9 * * 6,0"),
        ("0 9 * * 7", "0 9 * * 7"),
        ("0 9 * * 7-1", "0 9 * * 0,1"),
        ("0 9 * nov-feb *", "0 9 * 11,12,1,2 *"),
        ("*/30 22-3 * * *", "*/30 22,23,0,1,2,3 * * *"),
        ("0 22-3/2 * * *", "0 22,0,2 * * *"),
        ("*/30 15-23,0-3 * * *", "*/30 15-23,0-3 * * *"),
        ("5/15 8-20/4 * * *", "5-59/15 8-20/4 * * *"),
        ("*/1 0 1-1 * *", "* 0 1-1 * *"),
        ("0 0 L * *", "0 0 L * *"),
        ("0 0 * * fri#2,5L", "0 0 * * 5#2,5L"),
        ("30 0 9 ? * MON", "30 0 9 * * 1"),
        ("0 0 9 1 jan ? 2030-2032,2040", "0 0 9 1 1 * 2030-2032,2040"),
    ],
)
def test_an_expression_is_written_with_one_meaning(text: str, want: str) -> None:
    assert normalised(text, 10.0) == want


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("* * * *", "5, 6 (seconds first) or 7"),
        ("0 0 0 1 1 * 2030 9", "not 8"),
        ("60 * * * *", "minute: '60' is not in 0-59"),
        ("* 24 * * *", "hour: '24'"),
        ("0 0 0 * *", "day of month: '0'"),
        ("0 0 * 13 *", "month: '13'"),
        ("0 0 * * 8", "day of week: '8'"),
        ("0 0 * * fooday", "'FOODAY'"),
        ("? * * * *", "minute: '?'"),
        ("1,,2 * * * *", "minute: ''"),
        ("1-2-3 * * * *", "'2-3'"),
        ("*/0 * * * *", "a step of '0'"),
        ("*/90 * * * *", "a step of '90'"),
        ("*/ * * * *", "a step of ''"),
        ("0 0 15W * *", "'15W'"),
        ("0 0 * * 5#6", "'5#6'"),
        ("0 0 0 1 1 * 2040-2030", "ends before it begins"),
        ("0,5 * * * * *", "5 s apart"),
        ("*/7 * * * * *", "too dense"),
        ("0,55 * * * * *", "5 s apart"),
    ],
)
def test_a_wrong_expression_says_which_field_and_what_to_write(text: str, why: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        normalised(text, 10.0)
    assert why in caught.value.detail
    assert caught.value.hint
    assert normalised(caught.value.hint.split("`")[1], 10.0)


def test_what_the_calendar_asks_of_an_expression() -> None:
    assert line_of("*/5 * * * *").hourly
    assert line_of("0 0-23 * * *").hourly
    assert not line_of("0 */2 * * *").hourly
    assert line_of("30 0 9 1 1 * 2040,2030-2034/2").years == (2030, 2032, 2034, 2040)


@pytest.mark.parametrize(
    ("expression", "start", "want"),
    [
        ("0 9 * * 0", "2026-11-21T00:00", "Sun 2026-11-22 09:00"),  # POSIX: 0 and 7 are Sunday
        ("0 9 * * 7", "2026-11-21T00:00", "Sun 2026-11-22 09:00"),
        ("0 9 * * 1", "2026-11-21T00:00", "Mon 2026-11-23 09:00"),
        ("0 0 13 * 5", "2026-11-21T00:00", "Fri 2026-11-27 00:00"),  # day or weekday
        ("0 0 29 2 *", "2026-11-21T00:00", "Tue 2028-02-29 00:00"),
        ("0 0 L * *", "2026-02-01T00:00", "Sat 2026-02-28 00:00"),
        ("0 0 0 1 1 * 2030", "2026-11-21T00:00", "Tue 2030-01-01 00:00"),
        ("30 59 23 31 12 * 2030,2032", "2030-12-31T23:59:30", "Fri 2032-12-31 23:59"),
        ("0 9 * * *", "2026-11-21T09:00", "Sun 2026-11-22 09:00"),  # after, not at
    ],
)
def test_the_next_due_time(expression: str, start: str, want: str) -> None:
    found = CronRule(expression, UTC).after(at(start))
    assert found is not None
    assert shown(found).startswith(want)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 0 1 1 * 2020", "0 0 0 29 2 * 2030"])
def test_a_time_that_does_not_come_is_none(expression: str) -> None:
    assert CronRule(expression, UTC).after(at("2026-11-21T00:00")) is None


def test_the_last_due_time_counts_the_present_second_and_leaps_over_years() -> None:
    rule = CronRule("0 0 9 1 1 * 2020,2024", UTC)
    assert shown(rule.latest(at("2024-01-01T09:00:00")) or 0).startswith("Mon 2024-01-01 09:00")
    assert shown(rule.latest(at("2024-01-01T09:00:00") - 0.5) or 0).startswith("Wed 2020-01-01 09:00")
    assert shown(rule.latest(at("2026-11-21T00:00")) or 0).startswith("Mon 2024-01-01")
    assert rule.latest(at("2019-05-05T00:00")) is None
    assert CronRule("0 0 30 2 *", UTC).latest(at("2026-11-21T00:00")) is None


@pytest.mark.parametrize(
    ("expression", "zone", "start", "want"),
    [
        # The clock goes from 02:00 to 03:00: what falls between runs an hour later.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:30:00+0200", "30 02:30:00+0200"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:00:00+0200", "29 03:30:00+0200", "30 02:00:00+0200"]),
        ("0 30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:30:00+0200", "30 02:30:00+0200"]),
        # Every two hours names its hours; every hour goes by elapsed time.
        ("0,15,30 2,3 * * *", BERLIN, "2026-03-29T03:00", ["29 03:15:00+0200", "29 03:30:00+0200", "30 02:00:00+0200"]),
        ("0 */2 * * *", BERLIN, "2026-03-29T00:00", ["29 03:00:00+0200", "29 04:00:00+0200"]),
        ("15 * * * *", BERLIN, "2026-03-29T00:30", ["29 01:15:00+0100", "29 03:15:00+0200"]),
        # From 03:00 back to 02:00: a named hour runs the first time, every hour in both.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["25 02:30:00+0200", "26 02:30:00+0100"]),
        ("15 * * * *", BERLIN, "2026-10-25T01:30", ["25 02:15:00+0200", "25 02:15:00+0100", "25 03:15:00+0100"]),
        # Half an hour: 02:00 to 02:30, and 02:00 back to 01:30.
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["04 02:45:00+1100", "05 02:15:00+1100"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", ["05 01:45:00+1100", "06 01:45:00+1030"]),
    ],
)
def test_a_clock_that_is_set_forward_or_back(expression: str, zone: tzinfo, start: str, want: list[str]) -> None:
    found = series(CronRule(expression, zone), at(start, zone), len(want))
    assert [shown(each, zone)[12:] for each in found] == want


def test_in_the_repeated_hour_nothing_of_the_first_pass_comes_again() -> None:
    rule = CronRule("0,30 2 * * *", BERLIN)
    second_pass = at("2026-10-25T02:10", BERLIN, fold=1)
    assert shown(rule.after(second_pass) or 0, BERLIN).startswith("Mon 2026-10-26 02:00")
    assert rule.latest(second_pass) == at("2026-10-25T02:30", BERLIN)


# The oracle.


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    # The oracle takes `3-3` for the whole field, so a range has two ends here.
    number = st.integers(low, high)
    step = st.integers(1, (high - low) // 2)
    pair = st.sets(number, min_size=2, max_size=2).map(lambda two: f"{min(two)}-{max(two)}")
    one = number.map(str) | pair | st.tuples(pair, step).map(lambda two: f"{two[0]}/{two[1]}")
    return st.just("*") | step.map(lambda n: f"*/{n}") | st.lists(one, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 6)).map(" ".join)
STARTS = st.integers(int(at("2024-01-01T00:00")), int(at("2028-01-01T00:00")))


def readings_of_oracle(expression: str, start: datetime) -> Iterator[datetime]:
    """Due readings after `start`, without a zone, of the independent implementation.

    `implement_cron_bug`: as in Vixie's cron and ours, a day field that begins with a star is no restriction that the
    other day field could be an alternative to.
    """
    found = croniter(expression, start, ret_type=datetime, implement_cron_bug=True)
    while True:
        yield found.get_next(datetime)


def _offsets(zone: tzinfo, start: float, end: float) -> set[timedelta | None]:
    looks = range(int(start) - 86400, int(end) + 86400, 6 * 3600)
    return {datetime.fromtimestamp(each, zone).utcoffset() for each in looks}


@given(EXPRESSIONS, STARTS, st.sampled_from(ZONES))
@example("0 9 1 * */2", 1763000000, BERLIN)
def test_where_the_clock_is_not_set_both_implementations_agree(expression: str, start: int, zone: tzinfo) -> None:
    plain = normalised(expression, 10.0)
    oracle = readings_of_oracle(expression, reading(start, zone))
    rule = CronRule(plain, zone)
    instant: float = start
    for _ in range(4):
        found = rule.after(instant)
        assert found is not None
        want = next(oracle)
        if len(_offsets(zone, start, found)) > 1:
            return  # the next test's
        assert reading(found, zone) == want
        assert rule.latest(found) == found
        assert rule.latest(found - 1) in {instant, rule.latest(instant)}
        instant = found


CHANGES = [
    at("2026-03-29T01:00"),
    at("2026-10-25T01:00"),  # Berlin
    at("2026-03-08T07:00"),
    at("2026-11-01T06:00"),  # New York
    at("2026-10-03T15:30"),
    at("2026-04-04T15:00"),  # Lord Howe
]


def _first_instants(expression: str, zone: tzinfo, start: int, end: int) -> list[float]:
    """The law, by brute force: look at the clock each minute, and at one that was not set forward beside it."""
    day = {each.time() for _, each in zip(range(1440), readings_of_oracle(expression, datetime(2026, 1, 1)))}  # noqa: B905 - readings, endless
    shown_before, found, gap, left = set(), [], timedelta(), 0.0
    for instant in range(start + 60, end, 60):
        now, last = reading(instant, zone), reading(instant - 60, zone)
        if now - last > timedelta(minutes=1):
            gap = now - last - timedelta(minutes=1)
            left = instant + gap.total_seconds()
        delayed = instant < left and (now - gap).time() in day
        if delayed or (now not in shown_before and now.time() in day):
            found.append(float(instant))
        shown_before.add(now)
    return found


HOURS = _field(0, 23).filter(lambda text: not line_of(f"0 {text} * * *").hourly)


@given(_field(0, 59), HOURS, st.integers(0, 5))
@example("30", "2", 0)
@example("*/30", "2", 0)
@example("15", "1-3", 5)
def test_where_it_is_set_named_hours_run_once_for_each_reading(minute: str, hour: str, change: int) -> None:
    """The documented difference to other crons: what is left out comes as much later, what is repeated runs once.

    croniter and cronsim, as they are, drop or double such runs by where the stars stand; so the oracle here knows only
    readings of a calendar, and a clock that is looked at each minute says when each is reached first.
    """
    zone, middle = ZONES[change // 2], int(CHANGES[change])
    expression = normalised(f"{minute} {hour} * * *", 10.0)
    start, end = middle - 5 * 3600, middle + 5 * 3600
    rule = CronRule(expression, zone)
    found: list[float] = []
    instant: float | None = start
    while (instant := rule.after(instant or start)) is not None and instant < end:
        found.append(instant)
    assert found == _first_instants(expression, zone, start, end)
    for earlier, later in pairwise(found):
        assert rule.latest(later) == later
        assert rule.latest(later - 1) == earlier


@given(_field(0, 59), st.integers(0, 5))
@example("30", 4)
def test_where_it_is_set_every_hour_goes_by_elapsed_time(minute: str, change: int) -> None:
    zone, middle = ZONES[change // 2], int(CHANGES[change])
    rule = CronRule(normalised(f"{minute} * * * *", 10.0), zone)
    minutes = {each.minute for _, each in zip(range(60), readings_of_oracle(rule.expression, datetime(2026, 1, 1)))}  # noqa: B905 - readings, endless
    start, end = middle - 3 * 3600, middle + 3 * 3600
    found: list[float] = []
    instant: float | None = start
    while (instant := rule.after(instant or start)) is not None and instant < end:
        found.append(instant)
    assert found == [each for each in range(start + 60, end, 60) if reading(each, zone).minute in minutes]
    for earlier, later in pairwise(found):
        assert rule.latest(later) == later
        assert rule.latest(later - 1) == earlier


def test_every_hour_of_one_month_is_found_beyond_the_changes_of_half_a_century() -> None:
    rule = CronRule("0 * 29 2 *", BERLIN)
    assert shown(rule.after(at("2024-02-29T23:00", BERLIN)) or 0, BERLIN).startswith("Tue 2028-02-29 00:00")
    assert shown(rule.latest(at("2028-02-28T00:00", BERLIN)) or 0, BERLIN).startswith("Thu 2024-02-29 23:00")
    assert CronRule("0 * 30 2 *", BERLIN).after(at("2026-01-01T00:00")) is None
    assert CronRule("0 * 30 2 *", BERLIN).latest(at("2026-01-01T00:00")) is None
    assert CronRule("0 0 * 1 1 * 2020", BERLIN).after(at("2026-01-01T00:00")) is None


# The clock's own laws.


@given(st.sampled_from(ZONES), STARTS, st.integers(0, 6), st.integers(-7200, 7200))
def test_a_reading_has_one_instant_and_only_a_gap_delays(zone: tzinfo, start: int, change: int, near: int) -> None:
    for instant in (start, int(CHANGES[change % 6]) + near):
        one = reading(instant, zone)
        assert instant_of(one, zone) <= instant
        assert furthest_reading(instant, zone) >= one
        following = instant_of(one + timedelta(seconds=1), zone)
        assert following >= instant_of(one, zone)
        assert reading(following, zone) >= one
        assert due_at(one, zone) == instant_of(one, zone)  # a clock shows it, so no gap delays it
        assert earliest_reading(instant, zone) <= one


def test_what_a_gap_leaves_out_is_due_as_much_later() -> None:
    """Berlin skips an hour, Lord Howe half of one, and Samoa once skipped a whole day."""
    for zone, text, gap in (
        (BERLIN, "2026-03-29T02:30", 3600),
        (LORD_HOWE, "2026-10-04T02:15", 1800),
        (ZoneInfo("Pacific/Apia"), "2011-12-30T12:00", 86400),
    ):
        skipped = datetime.fromisoformat(text)
        due = due_at(skipped, zone)
        assert reading(due, zone) - skipped == timedelta(seconds=gap)
        assert earliest_reading(due, zone) == skipped
        assert instant_of(skipped, zone) < due


def test_people_read_times_in_their_zone_and_lengths_in_two_units() -> None:
    now = at("2026-11-21T08:00", BERLIN)
    assert time_text(at("2026-11-21T09:30", BERLIN), BERLIN, now) == "09:30 CET"
    assert time_text(at("2026-11-21T09:30:05", BERLIN), BERLIN, now) == "09:30:05 CET"
    assert time_text(at("2027-07-01T09:30", BERLIN), BERLIN, now) == "Thu 2027-07-01 09:30 CEST"
    assert [span_text(each) for each in (0, 90, 3600, 100_000)] == ["0 s", "1 min 30 s", "1 h", "1 d 3 h"]
