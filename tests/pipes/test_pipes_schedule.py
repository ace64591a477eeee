"""Schedules: what each text means, what each error offers instead, when it is due, by clocks
that are set and sleep.
"""

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
from msgspec.structs import replace

from pipe_texts import broken, usable
from supervisord_py.errors import ConfigError
from supervisord_py.pipes import due
from supervisord_py.pipes import schedule as schedules
from supervisord_py.pipes.due import (
    STEP_BACK_SECONDS,
    Decision,
    Due,
    Never,
    Now,
    Progress,
    Wait,
    decide,
    upcoming,
)
from supervisord_py.pipes.schedule import (
    At,
    Calendar,
    Cron,
    Every,
    Manual,
    Schedule,
    describe,
    parse_schedule,
)

HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


NOON = at("2026-11-21T12:00")


MEANINGS: dict[str, Schedule] = {
    " MANUAL\n": Manual(),
    "every 10m": Every(600),
    "Every   3 Days": Every(3 * DAY),
    "1h30m": Every(1.5 * HOUR),
    "every hour": Every(HOUR),
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
    "@every 30m": Every(1800),
    "daily at midnight": Cron("0 0 * * *"),
    "weekdays at noon": Cron("0 12 * * 1-5"),
    # As Debian's cron has it: with a star in one of the day fields both count.
    "0 0 1-7 * */7": Cron("0 0 1-7 * */7"),
    "0 0 */100,1-7 * MON": Cron("0 0 */100,1-7 * MON"),
    "0 0 */32,8-14 * 2": Cron("0 0 */32,8-14 * 2"),
    "0 0 * * */7": Cron("0 0 * * */7"),
}


@pytest.mark.parametrize(("text", "want"), MEANINGS.items())
def test_what_a_text_means(text: str, want: Schedule) -> None:
    assert parse_schedule(text) == (want, None)
    assert describe(want)


def test_daily_stays_an_interval_and_says_so() -> None:
    for text, seconds, better in (
        ("hourly", HOUR, "@hourly"),
        ("daily", DAY, "daily at 9:00"),
        ("every week", 7 * DAY, "monday at 9:00"),
    ):
        assert parse_schedule(text)[0] == Every(seconds)
        assert str(parse_schedule(text)[1]).endswith(f"write `{better}`")


FIRST_DAYS = {
    "0 0 1-7 * */7": "04 01 01",
    "0 0 */100,1-7 * MON": "05 02 02",
    "0 0 */32,8-14 * 2": "13 10 10",
    "0 0 * * */7": "04 11 18",
}


@pytest.mark.parametrize(("text", "days"), FIRST_DAYS.items())
def test_a_well_known_trick_of_cron_is_that_weekday_of_the_month(text: str, days: str) -> None:
    schedule, _said = parse_schedule(text)
    assert isinstance(schedule, Cron)
    found = islice(schedule.following(at("2026-01-01T00:00"), UTC), 3)
    assert " ".join(f"{datetime.fromtimestamp(each, UTC):%d}" for each in found) == days


SAID = {
    "0 0 1-7 * */7": "at 00:00 on every day of month from 1 through 7 if it's on Sunday (here)",
    "0 0 */100,1-7 * MON": "at 00:00 on every day of month from 1 through 7 if it's on Monday "
    "(here)",
    "0 0 29 * 1": "at 00:00 on the 29th day of month or on Monday, either of them (here)",
    "0 0 1,21,22,23,31 * *": "at 00:00 on the first, the 21st, the 22nd, the 23rd, and the 31st "
    "day of month (here)",
    "0 0 11 * *": "at 00:00 on the 11th day of every month (here)",
    "0 9 * * 7#1": "at 09:00 on the first Sunday of the month (here)",
}


@pytest.mark.parametrize(("text", "words"), SAID.items())
def test_a_cron_line_in_words(text: str, words: str) -> None:
    assert describe(parse_schedule(text)[0], "here") == words


OFFERS = {
    "9am": "daily at 9am", "09:00": "daily at 09:00", "noon": "daily at noon",
    "weekdays 09:00": "weekdays at 09:00",
    "weekdays-09:00": "weekdays at 09:00", "weekly on monday at 9am": "monday at 9am",
    "every other day": "every 2 days",
    "every-ten-minutes": "every 10 minutes", "cron(0 9 * * ? *)": "0 9 * * ? *",
    "monthly": "@monthly",
    "every monday 9am": "every monday at 9am", "first monday of the month at 9am": "0 9 * * 1#1",
    "last friday of every month at 17:30": "30 17 * * 5L", "every two hours": "every 2 hours",
}  # fmt: skip


@pytest.mark.parametrize(("text", "offer"), OFFERS.items())
def test_what_is_plainly_meant_is_offered_in_the_form_of_this_page(text: str, offer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schedule(text)
    assert f"did you mean `{offer}`?" in str(caught.value.hint)
    assert parse_schedule(offer)


DATE, CRON = "at 2099-01-01T09:00:00Z", "*/30 9-17 * * 1-5"
JUNK = {  # why, and what is offered: an example of a form
    **dict.fromkeys(
        (
            "",
            "continuous",
            "at 9:30",
            "every 5 parsecs",
            "tomorrow",
            "in a while",
            "wekdays at 9",
            "x" * 300,
        ),
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
    "0 9 1-7,*/100 * 1": ("the step of '1-7,*/100'", "0 9 * * 1#1"),
    "0 9 */40 * *": ("the step of '*/40'", "0 9 * * 1#1"),
    "0,55 * * * * *": ("too dense", "every 60 s"),
}


@pytest.mark.parametrize(("text", "told"), JUNK.items())
def test_junk_is_an_error_that_offers_no_other_time(text: str, told: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape(told[0])) as caught:
        parse_schedule(text)
    assert str(caught.value.hint).split("`")[1::2][:1] == [told[1]][: bool(told[1])]


@pytest.mark.parametrize(
    "name", ["Europe/Berln", "europe/berlin", "Europe", "../../etc/passwd", "\0"]
)
def test_an_unknown_zone_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError, match="time zone") as caught:
        schedules.checked_zone(name)
    assert ("Europe/Berlin" in str(caught.value.hint)) or not name.lower().startswith("europe/")


@pytest.mark.parametrize(
    ("members", "want"),
    [
        ({"frequency": "minutes", "interval": 10}, Every(600)),
        ({"frequency": "hours", "days_of_week": [], "at_hour": "0", "starting": "", "ending": None}, Every(HOUR)),
        ({"frequency": "days", "at_hour": "9", "at_minute": 30}, Calendar("days", at_hour=9, at_minute=30)),
        (
            {"frequency": "weeks", "interval": "2", "days_of_week": ["1", 5, 7], "timezone": "UTC",
             "starting": "2026-12-01", "ending": "2027-12-01", "max_occurrences": "10"},
            Calendar("weeks", 2, (0, 1, 5), timezone="UTC", starting="2026-12-01T00:00:00",
                     ending="2027-12-01T23:59:59", max_occurrences=10),
        ),
        ({"frequency": "daily"}, "/frequency must be one of .*, not 'daily'; did you mean 'days'"),
        ({"frequency": "days", "at_hours": 9}, "/at_hours unknown key 'at_hours'; did you mean "
                                               "'at_hour'"),
        ({"frequency": "days", "interval": 999_999}, " .*ten years"),
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
    # from its first wanted day on
    (Calendar("days", 7, (1,), at_hour=9), "11-23 09:00, 11-30 09:00"),
    (Calendar("days", 2, (1, 2), at_hour=9), "11-23 09:00, 12-01 09:00, 12-07 09:00"),
    (Calendar("weeks", 2, (1, 5), at_hour=9), "11-23 09:00, 11-27 09:00, 12-07 09:00"),
    (
        Calendar("months", day_of_month=31, at_hour=9),
        "11-30 09:00, 12-31 09:00, 01-31 09:00, 02-28 09:00",
    ),
    (Calendar("months", 5, at_hour=9), "04-21 09:00, 09-21 09:00"),
    (Calendar("hours", 6, max_occurrences=9), "11-21 12:00, 11-21 18:00, 11-22 00:00"),
    (Calendar("hours", 12, (1,)), "11-23 12:00, 11-30 00:00, 11-30 12:00"),
    (
        Calendar("minutes", 25, (6,), starting="2026-11-21T23:30"),
        "11-21 23:30, 11-21 23:55, 11-28 00:05",
    ),
    (Calendar("days", starting="2026-12-01T09:00+02:00", ending="2026-12-02"), "12-02 00:00"),
    (  # What the zone leaves out comes as much later as the clock was set.
        Calendar("days", at_hour=2, at_minute=30, timezone="Europe/Berlin", starting="2026-03-28"),
        "03-28 01:30, 03-29 01:30, 03-30 00:30",
    ),
]


@pytest.mark.parametrize(("plan", "want"), SERIES)
def test_a_series_of_a_config_map(plan: Calendar, want: str) -> None:
    times = want.split(", ")
    found = list(islice(plan.following(0.0, UTC, NOON), len(times)))
    assert [datetime.fromtimestamp(each, UTC).strftime("%m-%d %H:%M") for each in found] == times
    assert [next(plan.following(each - 1, UTC, NOON)) for each in found] == found
    assert describe(plan)


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
    """Nothing else: no other exception, no schedule that silently never comes.

    Past ones say that they are over.
    """
    try:
        schedule, _said = parse_schedule(text)
    except ConfigError as error:
        assert all(parse_schedule(offer) for offer in str(error.hint).split("`")[1::2])
        return
    now, seen = Now(NOON, 1000.0), Progress(NOON, 1000.0)
    decision = decide(schedule, seen, now)
    instants = upcoming(schedule, seen, now, decision)
    assert list(instants) == sorted(set(instants))
    if isinstance(decision, Never):
        assert isinstance(schedule, Manual) or (decision.over and isinstance(schedule, At))
    else:
        assert instants[0] >= NOON - HOUR


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
        (
            "15 * * * *",
            BERLIN,
            "2026-10-25T01:30",
            ["25 02:15:00+0200", "25 02:15:00+0100", "25 03:15:00+0100"],
        ),
    ],
)
def test_due_times_in_their_zone(text: str, zone: tzinfo, start: str, want: list[str]) -> None:
    found = islice(Cron(text).following(at(start, zone), zone), len(want))
    assert [datetime.fromtimestamp(each, zone).strftime("%d %H:%M:%S%z") for each in found] == want
    # an hour that comes twice is not run again from within
    second = at("2026-10-25T02:15", BERLIN, fold=1)
    assert next(Cron("30 2 * * *").following(second, BERLIN)) > second


# -- is it due -------------------------------------------------------------------------------------

NINE = Cron("0 9 * * *")
MISSED = "missed while off or asleep, {} ago: one run makes it good, whatever else was missed"


def once(moment: float) -> At:
    return At(datetime.fromtimestamp(moment, UTC).isoformat())


class World:
    """One pipe and the clocks; what a room would remember of it."""

    def __init__(
        self, schedule: Schedule, start: float = NOON, *, run_on_enable: bool = True
    ) -> None:
        self.schedule = schedule
        self.now = Now(start, 5000.0, set_at=start)
        self.progress = Progress(start, 5000.0)
        self.run_on_enable = run_on_enable

    def pass_(self, seconds: float) -> None:
        self.now = replace(
            self.now, wall=self.now.wall + seconds, boottime=self.now.boottime + seconds
        )

    def set_clock(self, seconds: float) -> None:
        """Somebody sets the wall clock; the scheduler notices."""
        self.now = replace(self.now, wall=self.now.wall + seconds, set_at=self.now.wall + seconds)

    def decide(self, delay: float = 0.0) -> Decision:
        return decide(
            self.schedule, self.progress, self.now, run_on_enable=self.run_on_enable, delay=delay
        )

    def run(self, *, started: bool = True) -> Due:
        """It is due: serve it."""
        found, now, known = self.decide(), self.now, self.progress
        assert isinstance(found, Due), found
        touched, count = (
            now.boottime if started else now.boottime_of(found.at),
            known.occurrences + started,
        )
        self.progress = replace(known, last_due=found.at, occurrences=count, touched_boot=touched)
        return found

    def waits(self) -> float:
        """It is not due: the seconds until it is."""
        wait = self.decide()
        assert isinstance(wait, Wait), wait
        return wait.until - self.now.wall


def test_an_interval_is_due_at_once_when_it_never_ran_and_then_from_start_to_start() -> None:
    world = World(Every(HOUR))
    assert world.run() == Due(NOON, "first run since it was enabled or edited")
    for step in (30 * DAY, -30 * DAY):  # B4: no step of the wall clock moves it
        world.set_clock(step)
        assert world.waits() == HOUR
    world.pass_(HOUR - 1)
    assert world.decide() == Wait(NOON + HOUR, "waits for 13:00 UTC: every 1 h")
    world.pass_(1)
    assert world.run() == Due(NOON + HOUR, "due: 1 h since the last start")
    assert World(Every(HOUR), run_on_enable=False).waits() == HOUR


def test_cron_does_not_fire_when_it_is_installed_and_a_missed_run_is_made_good_within_the_window_once() -> (
    None
):
    """#3607 and #3684."""
    world = World(NINE, at("2026-11-21T09:02"))
    assert world.decide() == Wait(at("2026-11-22T09:00"), "waits for Sun 2026-11-22 09:00 UTC")
    world.pass_(23 * HOUR + 58 * 60)
    assert world.run() == Due(at("2026-11-22T09:00"), "due at 09:00 UTC")
    world.pass_(2 * DAY + 3 * HOUR)
    assert world.run() == Due(at("2026-11-24T09:00"), MISSED.format("3 h"))
    world.pass_(2 * DAY + 10 * HOUR)
    missed = "missed Wed 2026-11-25 09:00 UTC by 1 d 13 h, too late to be made good"
    assert world.decide() == Wait(
        at("2026-11-27T09:00"), f"{missed}; waits for Fri 2026-11-27 09:00 UTC"
    )


def test_a_clock_that_was_wrong_by_a_year_does_not_stop_cron_for_a_year() -> None:
    """B4: what was done in a future that never was is forgotten; and nothing is served twice
    once it is put right.
    """
    world = World(NINE, at("2027-11-21T08:59"))
    world.pass_(60)
    world.run()
    world.set_clock(-365 * DAY)
    assert world.waits() == DAY
    world.pass_(DAY)
    assert world.run().at == at("2026-11-22T09:00")
    # a machine without a clock of its own: 1970 at boot, then the network's time
    ran = at("2026-11-21T09:00")
    raw = Progress(ran - DAY, 0.0, last_due=ran)
    assert isinstance(decide(NINE, raw, Now(100.0, 10.0)), Wait)
    assert decide(NINE, raw, Now(ran + HOUR, 20.0)) == Wait(
        ran + DAY, "waits for Sun 2026-11-22 09:00 UTC"
    )


def test_once_runs_once_is_over_when_it_was_past_and_made_good_when_it_was_not() -> None:
    world, over = World(once(NOON + HOUR)), Never("has no time to come", over=True)
    assert world.decide() == Wait(NOON + HOUR, "waits for 13:00 UTC")
    world.pass_(HOUR + 1)
    assert world.run() == Due(NOON + HOUR, "due at 13:00 UTC")
    assert world.decide() == World(once(NOON - 1)).decide() == over
    world = World(once(NOON + HOUR))
    world.pass_(6 * HOUR)
    assert world.decide() == Due(NOON + HOUR, MISSED.format("5 h"))
    world.pass_(DAY)
    told = f"missed Sat 2026-11-21 13:00 UTC by 1 d 5 h, too late to be made good; {over.why}"
    assert world.decide() == Never(told, over=True)
    # In a while, and tomorrow: from when it was written or enabled.
    soon = At("", after_seconds=1800.0)
    for each, seconds in {
        At("09:00:00"): 21 * HOUR,
        At("09:00:00", "Europe/Berlin"): 20 * HOUR,
        soon: 1800,
    }.items():
        world = World(each)
        assert world.waits() == seconds
    world.pass_(1800)
    world.run()
    world.progress = replace(world.progress, anchor_at=world.now.wall)  # enabled again
    assert world.waits() == 1800


def test_what_was_missed_asleep_is_spread_and_what_comes_due_is_not() -> None:
    """#3625: not everything at once."""
    world = World(NINE, at("2026-11-21T08:00"))
    world.pass_(2 * HOUR)
    world.now = replace(world.now, resumed_at=world.now.boottime)
    told = f"{MISSED.format('1 h')}, in 20 s: starts after a resume are spread out"
    assert world.decide(delay=20) == Wait(world.now.wall + 20, told)
    world.pass_(20)
    assert "makes it good" in world.run().why
    on_time = World(NINE, at("2026-11-21T08:59:59"))
    on_time.now = replace(on_time.now, resumed_at=on_time.now.boottime)
    on_time.pass_(1)
    assert isinstance(on_time.decide(delay=20), Due)
    assert 0 < due.stagger("a", "seed", 30.0) != due.stagger("b", "seed", 30.0) < 30


def test_occurrences_are_counted_the_last_that_was_missed_is_made_good_and_the_end_is_told() -> (
    None
):
    for plan, why in (
        (Calendar("days", at_hour=9, max_occurrences=2), "max_occurrences reached: 2"),
        (Calendar("days", at_hour=9, ending="2026-11-23T23:59:59"), "has no time to come"),
    ):
        world = World(plan)
        assert upcoming(plan, world.progress, world.now, world.decide()) == (
            NOON + 21 * HOUR,
            NOON + 45 * HOUR,
        )
        for _ in range(2):
            world.pass_(DAY)
            assert world.run().at == world.now.wall - 3 * HOUR
        assert world.decide() == Never(why, over=True)
    assert World(Cron("0 0 */31 2 1#2")).decide() == Never("has no time to come", over=True)
    world = World(Calendar("days", interval=2, at_hour=9))
    world.pass_(4 * DAY)
    assert world.run() == Due(NOON + 4 * DAY - 3 * HOUR, MISSED.format("3 h"))


SCHEDULES = st.sampled_from([
    Every(600.0), Every(7200.0), NINE, Cron("*/20 * * * *"), Cron("30 2 * * *", "Europe/Berlin"),
    Calendar("days", 2, at_hour=9), Calendar("minutes", 45, max_occurrences=1000),
])  # fmt: skip
KINDS = st.sampled_from(["pass", "pass", "pass", "back", "forward", "skip"])
STEPS = st.lists(st.tuples(KINDS, st.integers(1, 2 * 86400)), max_size=25)


@given(SCHEDULES, st.sampled_from([NOON, at("2026-03-28T20:00"), at("2026-10-24T20:00")]), STEPS)
def test_nothing_runs_early_twice_or_in_a_burst(
    schedule: Schedule, start: float, steps: list[tuple[str, int]]
) -> None:
    world, forgotten = World(schedule, start), None
    for what, seconds in steps:
        if what == "back":
            world.set_clock(-min(seconds, 2 * STEP_BACK_SECONDS))
            if (world.progress.last_due or 0.0) > world.now.wall + STEP_BACK_SECONDS:
                forgotten = world.now.set_at
        elif what == "forward":
            world.set_clock(seconds)
        else:
            world.pass_(seconds)
        decision = world.decide()
        if isinstance(decision, Due):
            assert decision.at <= world.now.wall
            if not isinstance(schedule, Every):
                assert decision.at > (forgotten or world.progress.last_due or 0.0)
            world.run(started=what != "skip")
            forgotten = None
            decision = world.decide()
        assert isinstance(decision, Wait)
        assert decision.until > world.now.wall


def test_the_next_runs_and_the_whole_story() -> None:
    now, seen = Now(NOON, 5000.0), Progress(NOON, 5000.0)
    for schedule, count, want in (
        (Every(HOUR), 3, (NOON, NOON + HOUR, NOON + 2 * HOUR)),
        (NINE, 2, (NOON + 21 * HOUR, NOON + 45 * HOUR)),
        (once(NOON + 5), 5, (NOON + 5,)),
        (Manual(), 5, ()),
    ):
        assert upcoming(schedule, seen, now, decide(schedule, seen, now), count) == want
    berlin, half_past_one = Now(NOON, 5000.0, zone=ZoneInfo("Europe/Berlin")), Cron("30 13 * * *")
    assert decide(half_past_one, seen, berlin) == Wait(NOON + 1800, "waits for 13:30 CET")
    assert [due.period(each, seen, now) for each in (half_past_one, Manual(), Every(600))] == [
        DAY,
        None,
        600,
    ]
