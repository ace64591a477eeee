"""Schedules: what each text means, what each error offers instead, when each kind is due."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import example, given
from hypothesis import strategies as st

from supervisord_py.pipes.config import SchedulerLimits
from supervisord_py.pipes.due import Never, Now, Progress, decide, upcoming
from supervisord_py.pipes.grammar import ParsedSchedule, parse_schedule
from supervisord_py.pipes.schedule import (
    At,
    Cron,
    Every,
    Manual,
    Schedule,
    ScheduleError,
    describe,
)

HOUR, DAY = 3600.0, 86400.0
BERLIN, NEW_YORK, LORD_HOWE = (ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"))


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


NOW = at("2026-11-21T12:00")


def parsed(text: str) -> Schedule:
    return parse_schedule(text).schedule


def refused(text: str) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    return caught.value


def shown(instant: float, zone: tzinfo = UTC) -> str:
    return datetime.fromtimestamp(instant, zone).strftime("%a %Y-%m-%d %H:%M:%S%z")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("manual", Manual()),
        (" MANUAL\n", Manual()),
        ("every 10m", Every(600)),
        ("30 minute", Every(1800)),
        ("Every   3 Days", Every(3 * DAY)),
        ("1d", Every(DAY)),
        ("every hour", Every(HOUR)),
        ("hourly", Every(HOUR)),
        ("every other day", Every(2 * DAY)),
        ("2h30m", Every(2.5 * HOUR)),
        ("every 1 hour and 30 minutes", Every(1.5 * HOUR)),
        ("@every 5m", Every(300)),
        ("daily at 9:30am", Cron("30 9 * * *")),
        ("Daily at 21:30", Cron("30 21 * * *")),
        ("daily at 12am", Cron("0 0 * * *")),
        ("daily at noon", Cron("0 12 * * *")),
        ("daily at 9 p.m.", Cron("0 21 * * *")),
        ("every weekday at 8:15", Cron("15 8 * * 1-5")),
        ("weekends at 10am", Cron("0 10 * * 0,6")),
        ("Tuesdays and Thursdays at 7pm", Cron("0 19 * * 2,4")),
        ("mon,wed,fri at 18:00", Cron("0 18 * * 1,3,5")),
        ("fri-mon at 9", Cron("0 9 * * 0,1,5,6")),
        ("@hourly", Cron("0 * * * *")),
        ("@Daily", Cron("0 0 * * *")),
        ("*/30 15-23,0-3 * * *", Cron("*/30 15-23,0-3 * * *")),
        ("0 9 * * Mon-Fri", Cron("0 9 * * MON-FRI")),
        ("30 0 9 * * *", Cron("30 0 9 * * *")),
        ("at 2099-01-01T00:00:00Z", At(at("2099-01-01T00:00"))),
        ("At 2099-01-01t09:30:00.123456+01:00", At(at("2099-01-01T08:30"))),
        ("2026-12-01 10:00", At(reading="2026-12-01T10:00:00")),
        ("at 2026-12-01", At(reading="2026-12-01T00:00:00")),
        ("in 30 minutes", At(after_seconds=1800)),
        ("In 2h30m", At(after_seconds=9000)),
        ("tomorrow at 9am", At(next_day="09:00:00")),
    ],
)
def test_what_a_text_means(text: str, want: Schedule) -> None:
    assert parse_schedule(text) == ParsedSchedule(want)


@pytest.mark.parametrize(
    ("text", "seconds", "better"),
    [("daily", DAY, "daily at"), ("every day", DAY, "daily at"), ("weekly", 7 * DAY, "monday at")],
)
def test_daily_stays_an_interval_and_says_so(text: str, seconds: float, better: str) -> None:
    found = parse_schedule(text)
    assert found.schedule == Every(seconds)
    assert better in found.warnings[0]


@pytest.mark.parametrize("name", ["Europe/Berln", "europe/berlin", "Europe", "../../etc/passwd", "Mars/Olympus", "\0"])
def test_an_unknown_zone_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule("daily at 9", timezone=name)
    assert "time zone" in caught.value.detail
    assert ("Europe/Berlin" in str(caught.value.hint)) or not name.lower().startswith("europe/")


@pytest.mark.parametrize(
    ("text", "why", "instead"),
    [
        ("", "no schedule", ""),
        ("continuous", "no schedule", ""),
        ("every 9pm", "no schedule", ""),
        ("tomorrow", "no schedule", ""),
        ("2026-13-01 10:00", "no date and time", "at 2099-01-01T09:00:00Z"),
        ("every 5 parsecs", "no schedule", ""),
        ("evry 5 minutes", "no schedule", "every 5 minutes"),
        ("wekdays at 9", "no schedule", "weekday at 9"),
        ("@dayly", "no schedule", "@daily"),
        ("every 5s", "too dense", "every 60 s"),
        ("every 999999999 weeks", "over ten years", "at 2099-01-01T09:00:00Z"),
        ("every day at 25:00", "no time of day", ""),
        ("mon at teatime", "no time of day", ""),
        ("mon at 13pm", "no time of day", ""),
        ("* * * *", "not 4", "*/30 9-17 * * 1-5"),
        ("at 2099-02-30T00:00:00Z", "no date and time", "at 2099-01-01T09:00:00Z"),
        ("at 0001-01-01T00:00:00+14:00", "from 1900", "at 2099-01-01T09:00:00Z"),
        ("x" * 300, "no schedule", ""),
    ],
)
def test_junk_is_an_error_that_offers_no_other_time(text: str, why: str, instead: str) -> None:
    """What is offered is the text itself with a word mended, or the example of a form that was tried."""
    error = refused(text)
    assert why in error.detail
    offered = str(error.hint).split("`")[1::2]
    assert offered == ([instead] if instead else [])
    assert not instead or parsed(instead)


# schedule_config


@pytest.mark.parametrize(
    ("members", "want"),
    [
        ({"frequency": "minutes", "interval": 10}, Every(600)),
        ({"frequency": "hours", "days_of_week": [], "at_hour": "0", "starting": ""}, Every(HOUR)),
        ({"frequency": "Day", "at_hour": "9", "at_minute": 30}, Cron("30 9 * * *")),
        ({"frequency": "daily", "days_of_week": "mon, 3"}, Cron("0 0 * * 1,3")),
        ({"frequency": "weekly", "days_of_week": ["1", 5, "Sunday", 7], "timezone": "Europe/Berlin"},
         Cron("0 0 * * 0,1,5", "Europe/Berlin")),
        ({"frequency": "months", "day_of_month": 31, "at_hour": 7}, Cron("0 7 L * *")),
    ],
)  # fmt: skip
def test_a_config_map_wins_over_the_text_and_takes_texts_for_numbers(members: dict[str, Any], want: Schedule) -> None:
    assert parse_schedule("continuous", members) == ParsedSchedule(want)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"interval": 1}, "frequency 'none'"),
        ({"frequency": "days", "interval": 0}, "interval '0'"),
        ({"frequency": "days", "interval": 2}, "interval: no cron line"),
        ({"frequency": "weeks"}, "days_of_week: no cron line"),
        ({"frequency": "months", "day_of_month": 30}, "day_of_month: no cron line"),
        ({"frequency": "minutes", "interval": 999_999_9}, "interval '9999999'"),
        ({"frequency": "hours", "days_of_week": [1]}, "days_of_week cannot"),
        ({"frequency": "days", "at_hour": 24}, "at_hour '24'"),
        ({"frequency": "weeks", "days_of_week": [8]}, "days_of_week '8'"),
        ({"frequency": "days", "timezone": "Mars/Base"}, "time zone"),
        ({"frequency": "days", "ending": "2026-01-01"}, "ending is not read here"),
    ],
)
def test_a_config_that_no_cron_line_can_say_names_the_key(members: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match=why) as caught:
        parse_schedule("manual", members)
    assert caught.value.hint


# Every text


WORDS = """
every each on at in and to , - daily weekly hourly manual day days weekday weekend mon tue monday sunday other hour
minutes m h d w s sec 0 1 9 30 59 9:30 9:30am 12pm 25:00 noon midnight * */5 */90 1-5 22-3 0,30 7 L LW 5#2 ? 2030
2020 @daily @reboot @every UTC Europe/Berlin TZ=UTC 2099-01-01T00:00:00Z 2020-01-01 feb mon-fri 1.5h 30 31
"""
TEXTS = st.lists(st.sampled_from(WORDS.split()), max_size=8).map(" ".join) | st.text(max_size=40)
LIMITS = SchedulerLimits()


def read(text: str) -> tuple[Schedule | None, ScheduleError | None]:
    try:
        return parse_schedule(text).schedule, None
    except ScheduleError as err:
        return None, err


@given(TEXTS)
@example("0 0 29 2 */7")
@example("*/5 * 31 2-3 *")
@example("٣ * * * *")
@example("every ٣ m")
def test_every_text_has_a_next_run_or_an_error_that_offers_one(text: str) -> None:
    """Nothing else: no other exception, no schedule that silently never comes. Past ones say that they are over."""
    schedule, problem = read(text)
    if problem is not None:
        assert problem.detail
        assert all(read(offer)[0] for offer in str(problem.hint).split("`")[1::2])
    if schedule is None:
        return
    assert describe(schedule)
    now = Now(NOW, 1000.0)
    decision = decide(schedule, Progress(NOW), now, LIMITS)
    instants = upcoming(schedule, now, decision)
    if isinstance(decision, Never):
        assert isinstance(schedule, Manual) or (decision.over and isinstance(schedule, At))
        assert instants == ()
    else:
        assert instants
        assert instants[0] >= NOW - HOUR
        assert list(instants) == sorted(set(instants))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Manual(), "only by hand or by an event"),
        (Every(5400), "every 1 h 30 min, from start to start"),
        (At(NOW), "once, at 2026-11-21T12:00:00Z"),
        (Cron("30 9 * * 1-5", "Europe/Berlin"), "at 09:30 on Monday through Friday (Europe/Berlin)"),
        (Cron("0 0 9 1 1 *"), "at 09:00 on January 1 (local time)"),
        (At(after_seconds=1800.0), "once, 30 min after it was enabled or written"),
        (At(reading="2026-12-01T10:00:00"), "once, at 2026-12-01T10:00:00 (local time)"),
    ],
)
def test_schedules_in_words(schedule: Schedule, words: str) -> None:
    assert describe(schedule) == words


# Cron


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("* * * *", "5 or 6 (seconds first) fields, not 4"),
        ("0 0 9 1 1 ? 2030", "not 7"),
        ("60 * * * *", "the minute of"),
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 */31 2 1#2", "no calendar"),
        ("0 0 * * fooday", "day-of-week of"),
        ("1,,2 * * * *", "minute of"),
        ("*/0 * * * *", "minute of"),
        ("*/90 * * * *", "the step of '*/90'"),
        ("0 22-2 * * *", "hour of"),
        ("0,55 * * * * *", "5 s apart"),
        ("*/7 * * * * *", "too dense"),
    ],
)
def test_a_wrong_expression_says_what_is(text: str, why: str) -> None:
    error = refused(text)
    assert why in error.detail
    assert parsed(str(error.hint).split("`")[1])


def cron(text: str) -> Cron:
    found = parsed(text)
    assert isinstance(found, Cron)
    return found


@pytest.mark.parametrize(
    ("text", "start", "want"),
    [
        ("0 9 * * 0", "2026-11-21T00:00", "Sun 2026-11-22 09:00"),  # POSIX: 0 and 7 are Sunday
        ("0 9 * * 7", "2026-11-21T00:00", "Sun 2026-11-22 09:00"),
        ("0 9 * * mon-fri", "2026-11-21T00:00", "Mon 2026-11-23 09:00"),
        ("*/30 22-23,0-2 * * *", "2026-11-21T23:30", "Sun 2026-11-22 00:00"),
        ("0 0 13 * 5", "2026-11-21T00:00", "Fri 2026-11-27 00:00"),  # day or weekday
        ("0 0 29 2 *", "2026-11-21T00:00", "Tue 2028-02-29 00:00"),
        ("0 0 L * *", "2026-02-01T00:00", "Sat 2026-02-28 00:00"),
        ("30 0 9 ? * MON", "2026-11-21T00:00", "Mon 2026-11-23 09:00:30"),
        ("0 9 * * *", "2026-11-21T09:00", "Sun 2026-11-22 09:00"),  # after, not at
    ],
)
def test_the_next_due_time(text: str, start: str, want: str) -> None:
    found = next(cron(text).following(at(start), UTC))
    assert shown(found).startswith(want)


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
    found = islice(Cron(expression).following(at(start, zone), zone), len(want))
    assert [shown(each, zone)[12:] for each in found] == want


def test_an_hour_that_comes_twice_is_not_run_again_from_within_its_second_time() -> None:
    second = at("2026-10-25T02:15", BERLIN, fold=1)
    assert next(Cron("30 2 * * *").following(second, BERLIN)) > second


def test_a_calendar_without_a_time_has_none_in_either_direction() -> None:
    assert list(Cron("0 0 */31 2 1#2").following(at("2026-11-21T12:00"), UTC)) == []
    assert Cron("0 0 */31 2 1#2").latest(at("2026-11-21T12:00"), UTC) is None


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
    rule = cron(expression)
    instant, is_set = float(start), False
    for found in islice(rule.following(instant, zone), 4):
        assert found > instant
        days = range(int(start) - 86400, int(found) + 86400, 6 * 3600)
        is_set = is_set or len({datetime.fromtimestamp(each, zone).utcoffset() for each in days}) > 1
        if not is_set:
            assert datetime.fromtimestamp(found, zone).replace(tzinfo=None) == oracle.get_next(datetime)
            assert rule.latest(found, zone) == found
            assert (rule.latest(found - 1, zone) or 0) <= instant
        instant = found
