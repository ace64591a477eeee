"""Schedules: what each text means, what each error offers instead, when cron lines are due."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipe_texts import broken, usable
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.due import Never, Now, Progress, decide, upcoming
from supervisord_py.pipes.schedule import (
    At,
    Calendar,
    Cron,
    Every,
    Manual,
    Schedule,
    checked_zone,
    describe,
    parse_schedule,
)

HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


NOW = at("2026-11-21T12:00")


MEANINGS: dict[str, Schedule] = {
    " MANUAL\n": Manual(),
    "every 10m": Every(600),
    "Every   3 Days": Every(3 * DAY),
    "1h30m": Every(1.5 * HOUR),
    "every hour": Every(HOUR),
    "hourly": Every(HOUR),
    "daily at 9:30am": Cron("30 9 * * *"),
    "daily at 12am": Cron("0 0 * * *"),
    "every weekday at 8:15": Cron("15 8 * * 1-5"),
    "weekends at 12": Cron("0 12 * * 0,6"),
    "Tuesdays and Thursdays at 7pm": Cron("0 19 * * 2,4"),
    "fri-mon at 9": Cron("0 9 * * 0,1,5,6"),
    "@Daily": Cron("0 0 * * *"),
    "*/30 15-23,0-3 * * *": Cron("*/30 15-23,0-3 * * *"),
    "0 9 * * Mon-Fri": Cron("0 9 * * MON-FRI"),
    "30 0 9 * * *": Cron("30 0 9 * * *"),
    "30 0 9 * * ? *": Cron("30 0 9 * * *"),
    "At 2099-01-01t09:30:00.123456+01:00": At("2099-01-01T09:30:00+01:00"),
    "2026-12-01 10:00": At("2026-12-01T10:00:00"),
    "Tomorrow at 9am": At("09:00:00"),
    "in 30m": At("", after_seconds=1800.0),
}


@pytest.mark.parametrize(("text", "want"), MEANINGS.items())
def test_what_a_text_means(text: str, want: Schedule) -> None:
    assert parse_schedule(text) == (want, None)
    assert describe(want)


def test_daily_stays_an_interval_and_says_so() -> None:
    for text, seconds, better in (("daily", DAY, "daily at 9:00"), ("every week", 7 * DAY, "monday at 9:00")):
        assert parse_schedule(text)[0] == Every(seconds)
        assert str(parse_schedule(text)[1]).endswith(f"for a fixed hour write `{better}`")


DATE, CRON = "at 2099-01-01T09:00:00Z", "*/30 9-17 * * 1-5"
JUNK = {  # why, and what is offered: an example of a form
    **dict.fromkeys(
        ("", "continuous", "at 9:30", "every 5 parsecs", "tomorrow", "in a while", "wekdays at 9", "x" * 300),
        ("no schedule", ""),
    ),
    "2026-13-01 10:00": ("no date and time", DATE),
    "at 0001-01-01T00:00:00+14:00": ("from 1900", DATE),
    "every 5s": ("too dense", "every 60 s"),
    "every 999999999 weeks": ("over ten years", DATE),
    "every day at 25:00": ("no time of day", ""),
    "mon at 13pm": ("no time of day", ""),
    "* * * *": ("wrong number of fields", CRON),
    "60 * * * *": ("bad minute", CRON),
    "0 0 30 2 *": ("bad day-of-month", CRON),
    "0 0 */31 2 1#2": ("no calendar", CRON),
    "*/90 * * * *": ("the step of '*/90'", "every 90m"),
    "0,55 * * * * *": ("too dense", "every 60 s"),
}


@pytest.mark.parametrize(("text", "told"), JUNK.items())
def test_junk_is_an_error_that_offers_no_other_time(text: str, told: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape(told[0])) as caught:
        parse_schedule(text)
    assert str(caught.value.hint).split("`")[1::2] == [told[1]][: bool(told[1])]


@pytest.mark.parametrize("name", ["Europe/Berln", "europe/berlin", "Europe", "../../etc/passwd", "\0"])
def test_an_unknown_zone_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError, match="time zone") as caught:
        checked_zone(name)
    assert ("Europe/Berlin" in str(caught.value.hint)) or not name.lower().startswith("europe/")


@pytest.mark.parametrize(
    ("members", "want"),
    [
        ({"frequency": "minutes", "interval": 10}, Every(600)),
        ({"frequency": "hours", "days_of_week": [], "at_hour": "0", "starting": "", "ending": None}, Every(HOUR)),
        ({"frequency": "hours", "max_occurrences": 3}, Calendar("hours", max_occurrences=3)),
        ({"frequency": "days", "at_hour": "9", "at_minute": 30}, Calendar("days", at_hour=9, at_minute=30)),
        (
            {"frequency": "weeks", "interval": "2", "days_of_week": ["1", 5, 7], "timezone": "UTC",
             "starting": "2026-12-01", "ending": "2027-12-01", "max_occurrences": "10"},
            Calendar("weeks", 2, (0, 1, 5), timezone="UTC", starting="2026-12-01T00:00:00",
                     ending="2027-12-01T23:59:59", max_occurrences=10),
        ),
        ({"frequency": "daily"}, "/frequency must be one of .*, not 'daily'; did you mean 'days'"),
        ({"frequency": "days", "interval": 0}, "/interval must be a whole number >= 1"),
        ({"frequency": "days", "at_hours": 9}, "/at_hours unknown key 'at_hours'; did you mean 'at_hour'"),
        ({"frequency": "days", "interval": 999_999}, " .*ten years"),
        ({"frequency": "weeks", "days_of_week": [8]}, "/days_of_week/0 must be"),
        ({"frequency": "days", "timezone": "Mars/Base"}, " .*time zone"),
        ({"frequency": "days", "starting": "soon"}, " 'soon' is no date"),
    ],
)  # fmt: skip
def test_a_config_map_wins_over_the_text(members: dict[str, Any], want: Schedule | str) -> None:
    front = f"schedule: continuous\nschedule_config: {json.dumps(members)}"
    if isinstance(want, str):
        found = broken(front).problem
        assert re.match(f"/schedule_config{want}", f"{found.pointer} {found.message}"), found
        assert (found.line, bool(found.hint)) == (3, True)
    else:
        assert usable(front).schedule == want


SERIES: list[tuple[Calendar, str]] = [  # from a Saturday
    (Calendar("days", 7, (1,), at_hour=9), "11-23 09:00, 11-30 09:00"),  # from its first wanted day on
    (Calendar("days", 2, (1, 2), at_hour=9), "11-23 09:00, 12-01 09:00, 12-07 09:00"),
    (Calendar("weeks", 2, (1, 5), at_hour=9), "11-23 09:00, 11-27 09:00, 12-07 09:00"),
    (Calendar("months", day_of_month=31, at_hour=9), "11-30 09:00, 12-31 09:00, 01-31 09:00, 02-28 09:00"),
    (Calendar("months", 5, at_hour=9), "04-21 09:00, 09-21 09:00"),
    (Calendar("hours", 6, max_occurrences=9), "11-21 12:00, 11-21 18:00, 11-22 00:00"),
    (Calendar("hours", 12, (1,)), "11-23 12:00, 11-30 00:00, 11-30 12:00"),
    (Calendar("minutes", 25, (6,), starting="2026-11-21T23:30"), "11-21 23:30, 11-21 23:55, 11-28 00:05"),
    (Calendar("days", starting="2026-12-01T09:00+02:00", ending="2026-12-02"), "12-02 00:00"),
    (  # What the zone leaves out comes as much later as the clock was set.
        Calendar("days", at_hour=2, at_minute=30, timezone="Europe/Berlin", starting="2026-03-28"),
        "03-28 01:30, 03-29 01:30, 03-30 00:30",
    ),
]


@pytest.mark.parametrize(("plan", "want"), SERIES)
def test_a_series_of_a_config_map(plan: Calendar, want: str) -> None:
    times = want.split(", ")
    found = list(islice(plan.following(0.0, UTC, NOW), len(times)))
    assert [datetime.fromtimestamp(each, UTC).strftime("%m-%d %H:%M") for each in found] == times
    assert [next(plan.following(each - 1, UTC, NOW)) for each in found] == found


WORDS = """
every each on at in and to , - daily weekly hourly manual day days weekday weekend mon tue monday sunday other hour
minutes m h d w s sec 0 1 9 30 59 9:30 9:30am 12pm 25:00 noon midnight * */5 */90 1-5 22-3 0,30 7 L LW 5#2 ? 2030
2020 @daily @reboot @every UTC 2099-01-01T00:00:00Z 2020-01-01 feb mon-fri 1.5h 30 31
"""
TEXTS = st.lists(st.sampled_from(WORDS.split()), max_size=8).map(" ".join) | st.text(max_size=40)


@given(TEXTS)
@example("0 0 29 2 */7")
@example("*/5 * 31 2-3 *")
@example("٣ * * * *")
def test_every_text_has_a_next_run_or_an_error(text: str) -> None:
    """Nothing else: no other exception, no schedule that silently never comes. Past ones say that they are over."""
    try:
        schedule, _said = parse_schedule(text)
    except ConfigError as error:
        assert all(parse_schedule(offer) for offer in str(error.hint).split("`")[1::2])
        return
    now, seen = Now(NOW, 1000.0), Progress(NOW, 1000.0)
    decision = decide(schedule, seen, now)
    instants = upcoming(schedule, seen, now, decision)
    assert list(instants) == sorted(set(instants))
    if isinstance(decision, Never):
        assert isinstance(schedule, Manual) or (decision.over and isinstance(schedule, At))
    else:
        assert instants[0] >= NOW - HOUR


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Every(5400), "every 1 h 30 min, from start to start"),
        (Cron("30 9 * * 1-5", "Europe/Berlin"), "at 09:30 on Monday through Friday (Europe/Berlin)"),
        (Cron("0 0 9 1 1 *"), "at 09:00 on January 1 (local time)"),
        (At("09:00:00"), "once, at 09:00:00 on the day after it was enabled or written (local time)"),
        (At("", after_seconds=1800.0), "once, 30 min after it was enabled or written"),
        (Calendar("hours", 6, (0, 6)), "every 6 hours, days_of_week (0, 6), at_hour 0, at_minute 0 (local time)"),
    ],
)
def test_schedules_in_words(schedule: Schedule, words: str) -> None:
    assert describe(schedule) == words


@pytest.mark.parametrize(
    ("text", "zone", "start", "want"),
    [
        ("0 9 * * 0", UTC, "2026-11-21T00:00", ["22 09:00:00+0000"]),  # POSIX: 0 and 7 are Sunday
        ("0 9 * * 7", UTC, "2026-11-21T00:00", ["22 09:00:00+0000"]),
        ("0 9 * * *", UTC, "2026-11-21T09:00", ["22 09:00:00+0000"]),  # after, not at
        # The clock goes from 02:00 to 03:00: what falls between runs once, when it has been set.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:00:00+0200", "30 02:30:00+0200"]),
        ("15 * * * *", BERLIN, "2026-03-29T00:30", ["29 01:15:00+0100", "29 03:15:00+0200"]),
        # From 03:00 back to 02:00: a named hour runs the first time, every hour in both.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["25 02:30:00+0200", "26 02:30:00+0100"]),
        ("15 * * * *", BERLIN, "2026-10-25T01:30", ["25 02:15:00+0200", "25 02:15:00+0100", "25 03:15:00+0100"]),
    ],
)
def test_due_times_in_their_zone(text: str, zone: tzinfo, start: str, want: list[str]) -> None:
    found = islice(Cron(text).following(at(start, zone), zone), len(want))
    assert [datetime.fromtimestamp(each, zone).strftime("%d %H:%M:%S%z") for each in found] == want
    second = at("2026-10-25T02:15", BERLIN, fold=1)  # an hour that comes twice is not run again from within
    assert next(Cron("30 2 * * *").following(second, BERLIN)) > second
