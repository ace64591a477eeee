"""What starts pipes: the clocks, what the loop survives, which pattern of an event fits, what is
watched for it.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from pipe_rig import UNTIL_GATE, TurnedClocks, eventually, pipe_house
from supervisord_py.pipes import machine_zone, triggers
from supervisord_py.pipes.context import ClockWatch
from supervisord_py.pipes.definition import parse_pattern
from supervisord_py.pipes.due import Due
from supervisord_py.pipes.models import PipeDefinition, PublishedEvent
from supervisord_py.pipes.triggers import Timetable, matches, watch_root

HOME = "/home/me/pipes/summary"


@pytest.mark.parametrize(
    ("pattern", "happened", "fits"),
    [
        ("pipe_completed:x", "pipe_completed:x", True),
        ("pipe_completed:x?", "pipe_completed:xy", True),
        ("meeting_ended:board", "meeting_ended", False),
        ("file_changed:*.md", f"file_changed:{HOME}/notes.md", True),
        ("file_changed:*.md", f"file_changed:{HOME}/in/notes.md", False),
        ("file_changed:**/*.md", f"file_changed:{HOME}/in/deep/notes.md", True),
        ("file_changed:/var/log/*.log", "file_changed:/var/log/x.log", True),
        ("file_changed:../inbox/*", "file_changed:/home/me/pipes/inbox/x", True),
        # What the pipe itself writes is no news to it.
        ("file_changed:**", f"file_changed:{HOME}/output/7/x.md", False),
        ("file_changed:**", f"file_changed:{HOME}/pipe.md", False),
        ("file_changed:**", f"file_changed:{HOME}/outputs/x", True),
        ("file_changed:in/box/", f"file_changed:{HOME}/in/box/deep/x.md", True),
    ],
)
def test_patterns_fit(pattern: str, happened: str, fits: bool) -> None:
    name, colon, subject = happened.partition(":")
    assert (
        matches(parse_pattern(pattern), PublishedEvent(name, subject if colon else None), HOME)
        is fits
    )


@pytest.mark.parametrize(
    ("pattern", "root", "deep"),
    [("*.md", HOME, False), ("in/box/*.md", f"{HOME}/in/box", False), ("in/**", f"{HOME}/in", True),
     ("/var/lo?/x", "/var", True), ("../../x", "/home/me", False), ("/", "/", True)],
)  # fmt: skip
def test_what_to_watch(pattern: str, root: str, deep: bool) -> None:
    assert watch_root(pattern, HOME) == (root, deep)


def test_the_clocks_tell_a_step_and_a_sleep_from_a_slew() -> None:
    time = TurnedClocks()
    zone: tzinfo = UTC
    watch = ClockWatch(time.clocks, lambda: zone)
    time.pass_by(100)
    assert not watch.look()
    time.wall -= 7
    assert [watch.look(), watch.look()] == [True, False]
    for told in (False, True):  # what is slewed adds up
        time.wall += 0.6
        assert watch.look() is told
    before = watch.resumed_at
    time.sleep(50)
    assert (watch.look(), watch.resumed_at - before >= 50) == (True, True)
    zone = ZoneInfo("Europe/Berlin")
    assert [watch.look(), watch.look()] == [True, False]


async def test_the_trouble_of_one_pipe_is_not_the_others_and_is_tried_again(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 5: a failure is never sticky."""
    monkeypatch.setattr(triggers, "RETRY_SECONDS", 0.02)
    start, asked, is_full = Timetable.start, [], True

    async def refused(self: Timetable, pipe: PipeDefinition, due: Due) -> str:
        asked.append(pipe.name)
        if pipe.name == "a" and is_full:
            raise OSError("disk full")
        return await start(self, pipe, due)

    monkeypatch.setattr(Timetable, "start", refused)
    async with pipe_house(short_tmp, slots_scheduled=2) as rig:
        for name in ("a", "b"):
            rig.shell(name, "echo", "schedule: every 1h")
        rig.shell("lost", "echo", "schedule: at 2099-01-01T00:00:00Z")
        await rig.room.files.refresh()
        await rig.ended("b")
        await eventually(lambda: asked.count("a") > 2, "it is tried again")
        told = rig.room.states.get("a").last_decision or ""
        assert told.startswith(
            "could not be decided or started: OSError: disk full; tried again in "
        )
        is_full = False
        await rig.ended("a")
        # B4: a last run in the future counts as now; the clock was wrong when it ran, or is wrong
        # now.
        rig.room.states.change("a", last_run_at=rig.time.clocks.wall() + 400 * 86400)
        await rig.restart()
        assert abs((rig.room.get("a").next_run or 0.0) - rig.time.clocks.wall() - 3600) < 60
        assert rig.room.get("lost").next_run == 4_070_908_800.0


async def test_a_run_that_is_skipped_says_for_whom_its_pipe_waits(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, slots_scheduled=1) as rig:
        rig.shell("long", UNTIL_GATE, "schedule: every 1h")
        await rig.room.files.refresh()
        await eventually(lambda: rig.room.get("long").running, "it runs")
        rig.shell("often", "echo", "schedule: every 20s")
        await rig.room.files.refresh()
        await eventually(lambda: rig.room.get("often").queued, "it waits")
        (waiting,) = rig.room.queued("often")
        for _ in range(2):
            rig.time.pass_by(20)
            rig.room.due_bell.set()
            await eventually(
                lambda: "skipped" in (rig.room.states.get("often").last_decision or ""),
                "it is told",
            )
            told = rig.room.states.get("often").last_decision or ""
            holder = rig.room.get("long").running
            slot = (
                f"a slot: pipe:long (execution {holder}) holds the only one of scheduled runs "
                "(pipes.slots_scheduled)"
            )
            assert told == f"still waiting: execution {waiting.id}, for {slot}; skipped"
            rig.room.states.decided("often", "")
        (rig.config.pipes_dir / "long" / "gate").touch()
        await rig.ended("often")


async def test_the_machines_zone_is_followed_and_its_clock_makes_nothing_up(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice.

    What another zone's clock has passed today was not missed; a pipe with a zone of its own stays
    put.
    """
    localtime = short_tmp / "localtime"

    def move_to(zone: str) -> None:
        fresh = short_tmp / "localtime.new"
        fresh.symlink_to(f"/usr/share/zoneinfo/{zone}")
        fresh.replace(localtime)

    move_to("Europe/Berlin")
    monkeypatch.setattr(machine_zone, "LOCALTIME", str(localtime))
    async with pipe_house(short_tmp, timezone=None) as rig:

        def due(name: str) -> datetime:
            return datetime.fromtimestamp(rig.room.next(name)["upcoming"][0], UTC)

        rig.time.pass_by(86400 - (rig.time.clocks.wall() - 13 * 3600) % 86400)  # it is 13:00 in UTC
        rig.shell("local", "echo", "schedule: daily at 9:00")
        rig.shell("tokyo", "echo", "schedule: daily at 9:00\ntimezone: Asia/Tokyo")
        await rig.room.files.refresh()
        rig.time.pass_by(4 * 3600)
        for zone in ("America/New_York", "America/Los_Angeles", "Europe/Berlin"):
            move_to(zone)
            here = ZoneInfo(zone)
            await eventually(
                lambda here=here: due("local").astimezone(here).hour == 9, f"the zone is {zone}"
            )
            assert f"Timezone: {zone} (UTC" in await rig.room.rendered("local")
            assert any(rig.room.next("local")["sentences"])
            assert due("tokyo").hour == 0
        assert await rig.rows() == []
