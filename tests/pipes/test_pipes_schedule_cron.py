"""Cron expressions: what is refused, when they are due, and against a second implementation."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import example, given
from hypothesis import strategies as st

from supervisord_py.pipes.scheduling.cron import CronRule, checked_cron
from supervisord_py.pipes.scheduling.schedule import ScheduleError
from supervisord_py.pipes.scheduling.wall import span_text, time_text

BERLIN, NEW_YORK, LORD_HOWE = (ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"))


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def shown(instant: float, zone: tzinfo = UTC) -> str:
    return datetime.fromtimestamp(instant, zone).strftime("%a %Y-%m-%d %H:%M:%S%z")


@pytest.mark.parametrize(
    ("text", "why", "instead"),
    [
        ("* * * *", "5 or 6 (seconds first) fields, not 4", "*/30 9-17 * * 1-5"),
        ("0 0 0 1 1 * 2030 9", "not 8", "`"),
        ("0 0 9 1 1 ? 2030", "years", "at 2099"),
        ("60 * * * *", "minute of", "`"),
        ("* 24 * * *", "it takes 0-23", "`"),
        ("0 0 0 * *", "day-of-month of", "`"),
        ("0 0 30 2 *", "no calendar", "`"),
        ("0 0 * 13 *", "month of", "`"),
        ("0 0 * * fooday", "day-of-week of", "`"),
        ("1,,2 * * * *", "minute of", "`"),
        ("*/0 * * * *", "minute of", "`"),
        ("*/90 * * * *", "the step of '*/90'", "every 90m"),
        ("0 0 15W * *", "day-of-month of", "`"),
        ("0 22-2 * * *", "the range 22-2 ends before it begins", "write 22-23,0-2"),
        ("0 9 * nov-feb *", "NOV-FEB ends", "write NOV-DEC,JAN-FEB"),
        ("0 9 * * sat-sun", "SAT-SUN ends", "write SAT-SAT,SUN-SUN"),
        ("0,55 * * * * *", "5 s apart", "0 * * * * *"),
        ("*/7 * * * * *", "too dense", "0 * * * * *"),
    ],
)
def test_a_wrong_expression_says_which_field_and_what_to_write(text: str, why: str, instead: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        checked_cron(text, 10.0)
    assert why in caught.value.detail
    assert instead in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "start", "want"),
    [
        ("0 9 * * 0", "2026-11-21T00:00", "Sun 2026-11-22 09:00"),  # POSIX: 0 and 7 are Sunday
        ("0 9 * * 7", "2026-11-21T00:00", "Sun 2026-11-22 09:00"),
        ("0 9 * * mon-fri", "2026-11-21T00:00", "Mon 2026-11-23 09:00"),
        ("*/30 22-23,0-2 * * *", "2026-11-21T23:30", "Sun 2026-11-22 00:00"),
        ("0 9 * * SAT-SAT,SUN-SUN", "2026-11-21T10:00", "Sun 2026-11-22 09:00"),
        ("0 0 13 * 5", "2026-11-21T00:00", "Fri 2026-11-27 00:00"),  # day or weekday
        ("0 0 29 2 *", "2026-11-21T00:00", "Tue 2028-02-29 00:00"),
        ("0 0 L * *", "2026-02-01T00:00", "Sat 2026-02-28 00:00"),
        ("30 0 9 ? * MON", "2026-11-21T00:00", "Mon 2026-11-23 09:00:30"),
        ("0 0 9 1 jan ? *", "2026-11-21T00:00", "Fri 2027-01-01 09:00"),  # a year field that allows all
        ("0 9 * * *", "2026-11-21T09:00", "Sun 2026-11-22 09:00"),  # after, not at
    ],
)
def test_the_next_due_time(text: str, start: str, want: str) -> None:
    found = next(CronRule(checked_cron(text, 10.0), UTC).following(at(start)))
    assert shown(found).startswith(want)


def test_the_last_due_time_counts_the_present_second() -> None:
    rule = CronRule("0 9 1 1 *", UTC)
    assert shown(rule.latest(at("2024-01-01T09:00:00")) or 0).startswith("Mon 2024-01-01 09:00")
    assert shown(rule.latest(at("2024-01-01T09:00:00") - 0.5) or 0).startswith("Sun 2023-01-01 09:00")


@pytest.mark.parametrize(
    ("expression", "zone", "start", "want"),
    [
        # The clock goes from 02:00 to 03:00: what falls between runs once, when it has been set.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:00:00+0200", "30 02:30:00+0200"]),
        ("15 * * * *", BERLIN, "2026-03-29T00:30", ["29 01:15:00+0100", "29 03:15:00+0200"]),
        # From 03:00 back to 02:00: a named hour runs the first time, every hour in both.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["25 02:30:00+0200", "26 02:30:00+0100"]),
        ("15 * * * *", BERLIN, "2026-10-25T01:30", ["25 02:15:00+0200", "25 02:15:00+0100", "25 03:15:00+0100"]),
    ],
)
def test_a_clock_that_is_set_forward_or_back(expression: str, zone: tzinfo, start: str, want: list[str]) -> None:
    found = islice(CronRule(expression, zone).following(at(start, zone)), len(want))
    assert [shown(each, zone)[12:] for each in found] == want


def test_in_the_repeated_hour_nothing_of_the_first_pass_comes_again() -> None:
    rule = CronRule("0,30 2 * * *", BERLIN)
    second_pass = at("2026-10-25T02:10", BERLIN, fold=1)
    assert shown(next(rule.following(second_pass)), BERLIN).startswith("Mon 2026-10-26 02:00")
    assert (rule.latest(second_pass) or second_pass + 1) <= second_pass


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


@given(EXPRESSIONS, STARTS, st.sampled_from((UTC, BERLIN, NEW_YORK, LORD_HOWE)))
@example("0 9 1 * */2", 1763000000, BERLIN)
def test_due_times_ascend_and_agree_with_another_implementation(expression: str, start: int, zone: tzinfo) -> None:
    """Where the clock is not set; `implement_cron_bug`: a day field that begins with a star restricts nothing."""
    begin = datetime.fromtimestamp(start, zone).replace(tzinfo=None)
    oracle = croniter(expression, begin, ret_type=datetime, implement_cron_bug=True)
    rule = CronRule(checked_cron(expression, 10.0), zone)
    instant, is_set = float(start), False
    for found in islice(rule.following(instant), 4):
        assert found > instant
        days = range(int(start) - 86400, int(found) + 86400, 6 * 3600)
        is_set = is_set or len({datetime.fromtimestamp(each, zone).utcoffset() for each in days}) > 1
        if not is_set:
            assert datetime.fromtimestamp(found, zone).replace(tzinfo=None) == oracle.get_next(datetime)
            assert rule.latest(found) == found
            assert (rule.latest(found - 1) or 0) <= instant
        instant = found


def test_people_read_times_in_their_zone_and_lengths_in_two_units() -> None:
    now = at("2026-11-21T08:00", BERLIN)
    assert time_text(at("2026-11-21T09:30", BERLIN), BERLIN, now) == "09:30 CET"
    assert time_text(at("2026-11-21T09:30:05", BERLIN), BERLIN, now) == "09:30:05 CET"
    assert time_text(at("2027-07-01T09:30", BERLIN), BERLIN, now) == "Thu 2027-07-01 09:30 CEST"
    assert [span_text(each) for each in (0, 90, 3600, 100_000)] == ["0 s", "1 min 30 s", "1 h", "1 d 3 h"]
