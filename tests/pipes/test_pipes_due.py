"""Is it due? First sight, catch-up, clocks that are set, sleep; and what people ask: when next, how often, and why."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisord_py.pipes import due
from supervisord_py.pipes.due import STEP_BACK_SECONDS, Decision, Due, Never, Now, Progress, Wait, decide, upcoming
from supervisord_py.pipes.schedule import At, Calendar, Cron, Every, Manual, Schedule

HOUR, DAY = 3600.0, 86400.0
NINE = Cron("0 9 * * *")
MISSED = "missed while off or asleep, {} ago: one run makes it good, whatever else was missed"


def at(text: str, zone: tzinfo = UTC) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


NOON = at("2026-11-21T12:00")


def once(moment: float) -> At:
    return At(datetime.fromtimestamp(moment, UTC).isoformat())


class World:
    """One pipe and the clocks; what a room would remember of it."""

    def __init__(self, schedule: Schedule, start: float = NOON, *, run_on_enable: bool = True) -> None:
        self.schedule = schedule
        self.now = Now(start, 5000.0, set_at=start)
        self.progress = Progress(start, 5000.0)
        self.run_on_enable = run_on_enable

    def pass_(self, seconds: float) -> None:
        self.now = replace(self.now, wall=self.now.wall + seconds, boottime=self.now.boottime + seconds)

    def set_clock(self, seconds: float) -> None:
        """Somebody sets the wall clock; the scheduler notices."""
        self.now = replace(self.now, wall=self.now.wall + seconds, set_at=self.now.wall + seconds)

    def decide(self, delay: float = 0.0) -> Decision:
        return decide(self.schedule, self.progress, self.now, run_on_enable=self.run_on_enable, delay=delay)

    def run(self, *, started: bool = True) -> Due:
        """It is due: serve it."""
        found, now, known = self.decide(), self.now, self.progress
        assert isinstance(found, Due), found
        touched, count = now.boottime if started else now.boottime_of(found.at), known.occurrences + started
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


def test_cron_does_not_fire_when_it_is_installed_and_a_missed_run_is_made_good_within_the_window_once() -> None:
    """#3607 and #3684."""
    world = World(NINE, at("2026-11-21T09:02"))
    assert world.decide() == Wait(at("2026-11-22T09:00"), "waits for Sun 2026-11-22 09:00 UTC")
    world.pass_(23 * HOUR + 58 * 60)
    assert world.run() == Due(at("2026-11-22T09:00"), "due at 09:00 UTC")
    world.pass_(2 * DAY + 3 * HOUR)
    assert world.run() == Due(at("2026-11-24T09:00"), MISSED.format("3 h"))
    world.pass_(2 * DAY + 10 * HOUR)
    missed = "missed Wed 2026-11-25 09:00 UTC by 1 d 13 h, too late to be made good"
    assert world.decide() == Wait(at("2026-11-27T09:00"), f"{missed}; waits for Fri 2026-11-27 09:00 UTC")


def test_a_clock_that_was_wrong_by_a_year_does_not_stop_cron_for_a_year() -> None:
    """B4: what was done in a future that never was is forgotten; and nothing is served twice once it is put right."""
    world = World(NINE, at("2027-11-21T08:59"))
    world.pass_(60)
    world.run()
    world.set_clock(-365 * DAY)
    assert world.waits() == DAY
    world.pass_(DAY)
    assert world.run().at == at("2026-11-22T09:00")
    ran = at("2026-11-21T09:00")  # a machine without a clock of its own: 1970 at boot, then the network's time
    raw = Progress(ran - DAY, 0.0, last_due=ran)
    assert isinstance(decide(NINE, raw, Now(100.0, 10.0)), Wait)
    assert decide(NINE, raw, Now(ran + HOUR, 20.0)) == Wait(ran + DAY, "waits for Sun 2026-11-22 09:00 UTC")


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
    for each, seconds in {At("09:00:00"): 21 * HOUR, At("09:00:00", "Europe/Berlin"): 20 * HOUR, soon: 1800}.items():
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


def test_occurrences_are_counted_the_last_that_was_missed_is_made_good_and_the_end_is_told() -> None:
    for plan, why in (
        (Calendar("days", at_hour=9, max_occurrences=2), "max_occurrences reached: 2"),
        (Calendar("days", at_hour=9, ending="2026-11-23T23:59:59"), "has no time to come"),
    ):
        world = World(plan)
        assert upcoming(plan, world.progress, world.now, world.decide()) == (NOON + 21 * HOUR, NOON + 45 * HOUR)
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
def test_nothing_runs_early_twice_or_in_a_burst(schedule: Schedule, start: float, steps: list[tuple[str, int]]) -> None:
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
    assert [due.period(each, seen, now) for each in (half_past_one, Manual(), Every(600))] == [DAY, None, 600]
