"""The grammar of schedules: what real files write, what people mean, and what each error offers instead."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisord_py.pipes.config import SchedulerLimits
from supervisord_py.pipes.scheduling.due import Never, Now, Progress, decide
from supervisord_py.pipes.scheduling.forecast import describe, upcoming
from supervisord_py.pipes.scheduling.grammar import ParsedSchedule, ScheduleError, parse_schedule
from supervisord_py.pipes.scheduling.schedule import At, Calendar, Cron, Every, Frequency, Manual, Schedule

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
HOUR, DAY = 3600.0, 86400.0


def parsed(text: str) -> Schedule:
    return parse_schedule(text).schedule


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("every 10m", 600),
        ("every 30 minutes", 1800),
        ("30 minute", 1800),
        ("every 90 seconds", 90),
        ("every 2 hours", 2 * HOUR),
        ("Every   3 Days", 3 * DAY),
        ("1d", DAY),
        ("every 2 weeks", 14 * DAY),
        ("every hour", HOUR),
        ("hourly", HOUR),
        ("every other day", 2 * DAY),
        ("2h30m", 2.5 * HOUR),
        ("every 1 hour and 30 minutes", 1.5 * HOUR),
        ("@every 5m", 300),
    ],
)
def test_intervals(text: str, seconds: float) -> None:
    assert parse_schedule(text) == ParsedSchedule(Every(seconds))


@pytest.mark.parametrize(
    ("text", "seconds", "better"),
    [("daily", DAY, "daily at"), ("every day", DAY, "daily at"), ("weekly", 7 * DAY, "monday at")],
)
def test_daily_stays_an_interval_and_says_so(text: str, seconds: float, better: str) -> None:
    found = parse_schedule(text)
    assert found.schedule == Every(seconds)
    assert better in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("daily at 9:30am", "30 9 * * *"),
        ("every day at 9am", "0 9 * * *"),
        ("Daily at 21:30", "30 21 * * *"),
        ("daily at 12am", "0 0 * * *"),
        ("daily at noon", "0 12 * * *"),
        ("daily at 9 p.m.", "0 21 * * *"),
        ("every weekday at 8:15", "15 8 * * 1-5"),
        ("weekends at 10am", "0 10 * * 0,6"),
        ("monday at 9", "0 9 * * 1"),
        ("Tuesdays and Thursdays at 7pm", "0 19 * * 2,4"),
        ("mon,wed,fri at 18:00", "0 18 * * 1,3,5"),
        ("mon-fri at 9", "0 9 * * 1,2,3,4,5"),
        ("fri to mon at 9", "0 9 * * 0,1,5,6"),
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@yearly", "0 0 1 1 *"),
        ("0 20 * * *", "0 20 * * *"),
        ("*/30 15-23,0-3 * * *", "*/30 15-23,0-3 * * *"),
        ("0 9 * * Mon-Fri", "0 9 * * MON-FRI"),
        ("30 0 9 * * *", "30 0 9 * * *"),
    ],
)
def test_wall_clock_times(text: str, expression: str) -> None:
    assert parse_schedule(text) == ParsedSchedule(Cron(expression))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("daily at 9:30 Europe/Berlin", Cron("30 9 * * *", "Europe/Berlin")),
        ("daily at 9:30 (UTC)", Cron("30 9 * * *", "UTC")),
        ("0 9 * * * America/Argentina/Salta", Cron("0 9 * * *", "America/Argentina/Salta")),
        ("CRON_TZ=Asia/Kathmandu 0 9 * * *", Cron("0 9 * * *", "Asia/Kathmandu")),
    ],
)
def test_a_zone_in_the_text_wins_over_the_pipes(text: str, want: Schedule) -> None:
    assert parse_schedule(text, timezone="America/New_York").schedule == want
    assert parse_schedule("daily at 9", timezone="America/New_York").schedule == Cron("0 9 * * *", "America/New_York")


@pytest.mark.parametrize("name", ["Europe/Berln", "europe/berlin", "Europe", "../../etc/passwd", "Mars/Olympus", "\0"])
def test_an_unknown_zone_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule("daily at 9", timezone=name)
    assert "time zone" in caught.value.detail
    assert ("Europe/Berlin" in str(caught.value.hint)) or not name.lower().startswith("europe/")


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("at 2099-01-01T00:00:00Z", "2099-01-01T00:00:00"),
        ("At 2099-01-01t09:30:00.123456+01:00", "2099-01-01T08:30:00"),
        ("at 2020-01-01 00:00Z", "2020-01-01T00:00:00"),
    ],
)
def test_one_time_schedules_are_whole_seconds_even_if_past(text: str, utc: str) -> None:
    assert parsed(text) == At(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp())


def test_a_time_without_an_offset_is_of_the_pipes_zone_or_an_error() -> None:
    assert parse_schedule("at 2099-01-01T09:00", timezone="Europe/Berlin").schedule == parsed("at 2099-01-01T08:00Z")
    with pytest.raises(ScheduleError, match="no offset"):
        parse_schedule("at 2099-01-01T09:00")


@pytest.mark.parametrize("text", ["manual", " MANUAL\n"])
def test_manual(text: str) -> None:
    assert parsed(text) == Manual()


@pytest.mark.parametrize(
    ("text", "why", "instead"),
    [
        ("", "no schedule", ""),
        ("continuous", "no schedule", ""),
        ("at 9:30", "no schedule", "daily at 9:30"),
        ("every 9pm", "no schedule", ""),
        ("in 30 minutes", "no schedule", ""),
        ("2026-12-01 10:00", "no schedule", ""),
        ("every monday", "no schedule", ""),
        ("every 5 parsecs", "no schedule", ""),
        ("@reboot", "no schedule", ""),
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
        ("at 0001-01-01T00:00:00+14:00", "not in 1900", "at 2099-01-01T09:00:00Z"),
        ("x" * 300, "too long", ""),
    ],
)
def test_junk_is_an_error_that_offers_no_other_time(text: str, why: str, instead: str) -> None:
    """What is offered is the text itself with a word mended, or the example of a form that was tried."""
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    assert why in caught.value.detail
    offered = str(caught.value.hint).split("`")[1::2]
    assert offered == ([instead] if instead else [])
    assert not instead or parsed(instead)


def test_the_floor_is_a_setting() -> None:
    assert parse_schedule("every 1s", floor_seconds=1.0).schedule == Every(1.0)
    with pytest.raises(ScheduleError, match="shortest interval is 120 s"):
        parse_schedule("every minute", floor_seconds=120.0)


# schedule_config


def config(**members: Any) -> Schedule:
    return parse_schedule("continuous", members).schedule


def test_a_config_map_wins_over_the_text_and_takes_texts_for_numbers() -> None:
    found = config(
        frequency="weeks",
        interval="2",
        days_of_week=["1", 5, "Sunday", 7],
        at_hour="9",
        at_minute=30,
        timezone="Europe/Berlin",
        starting="2026-12-01",
        ending="2027-12-01T00:00:00Z",
        max_occurrences="10",
    )
    assert found == Calendar(
        Frequency.WEEKS,
        2,
        days_of_week=(0, 1, 5),
        at_hour=9,
        at_minute=30,
        timezone="Europe/Berlin",
        starting=datetime(2026, 11, 30, 23, tzinfo=UTC).timestamp(),
        ending=datetime(2027, 12, 1, tzinfo=UTC).timestamp(),
        max_occurrences=10,
    )
    assert config(frequency="Day", days_of_week="mon, 3") == Calendar(Frequency.DAYS, days_of_week=(1, 3))
    assert config(frequency="months", day_of_month=31) == Calendar(Frequency.MONTHS, day_of_month=31)


def test_an_empty_config_leaves_the_text() -> None:
    assert parse_schedule("every 10m", {}).schedule == Every(600)


def test_minutes_and_hours_are_an_interval_unless_they_are_bounded() -> None:
    assert config(frequency="minutes", interval=10) == Every(600)
    assert config(frequency="hours", days_of_week=[], at_hour="0", starting="") == Every(HOUR)
    assert config(frequency="hours", max_occurrences=3) == Calendar(Frequency.HOURS, max_occurrences=3)
    assert config(frequency="hourly", days_of_week=[1]) == Calendar(Frequency.HOURS, days_of_week=(1,))


def test_what_has_no_effect_is_told() -> None:
    found = parse_schedule("", {"frequency": "hours", "at_hour": 9, "day_of_month": None, "intervall": 3, "zzz": 1})
    assert found.warnings == (
        "schedule_config: at_hour has no effect with frequency hours",
        "schedule_config: intervall is unknown; did you mean 'interval'?",
        "schedule_config: zzz is unknown",
    )
    months = parse_schedule("", {"frequency": "months", "days_of_week": [1]})
    assert months.schedule == Calendar(Frequency.MONTHS)
    assert len(months.warnings) == 1


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({}, "frequency 'none'"),
        ({"frequency": "days", "interval": 0}, "interval '0'"),
        ({"frequency": "days", "interval": 999_999}, "ten years"),
        ({"frequency": "days", "at_hour": 24}, "at_hour '24'"),
        ({"frequency": "months", "day_of_month": 32}, "day_of_month '32'"),
        ({"frequency": "weeks", "days_of_week": [8]}, "days_of_week '8'"),
        ({"frequency": "days", "timezone": "Mars/Base"}, "time zone"),
        ({"frequency": "days", "starting": "soon"}, "starting 'soon'"),
        ({"frequency": "days", "ending": "2026-01-01"}, "ending '2026-01-01' has no offset"),
        (
            {"frequency": "days", "starting": "2027-01-02T00:00:01Z", "ending": "2027-01-02T12:00:00Z"},
            "between starting",
        ),
    ],
)
def test_a_wrong_config_names_the_key(members: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule("manual", members or {"x": 1})
    assert why in caught.value.detail
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
    instants = upcoming(schedule, Progress(NOW), now, LIMITS)
    decision = decide(schedule, Progress(NOW), now, LIMITS)
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
        (Cron("0 9 * * MON-FRI"), "at 09:00 on Monday through Friday (local time)"),
        (
            Calendar(Frequency.WEEKS, 2, (1, 5), at_hour=9, starting=NOW, ending=NOW + DAY),
            "every 2 weeks, on Mon Fri, at 09:00, from 2026-11-21T12:00:00Z, until 2026-11-22T12:00:00Z (local time)",
        ),
        (
            Calendar(Frequency.MONTHS, day_of_month=31),
            "every month, on day 31 or the last of the month, at 00:00 (local time)",
        ),
        (Calendar(Frequency.HOURS, max_occurrences=1), "every hour, at most 1 times (local time)"),
    ],
)
def test_schedules_in_words(schedule: Schedule, words: str) -> None:
    assert describe(schedule) == words
