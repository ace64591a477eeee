"""What people do to pipes' files through the room, and what it shows of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipe_rig import eventually, pipe_house
from requirement_stage import ended
from supervisord_py.errors import ConfigError, ConflictError, InvalidInputError, UnknownUnitError
from supervisord_py.pipes.execution import Status
from supervisord_py.pipes.room_requests import RunRequest

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.pipes.declaring.catalog import Change


async def test_a_pipe_is_added_disabled_checked_changed_and_removed(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        source = rig.config.examples_dir / "hello"
        source.mkdir()
        (source / "pipe.md").write_text("---\nagent: command\ncommand: cat\nschedule: every 1h\n---\nHi {{x}}.\n")
        added = await rig.room.install("example:hello")
        assert (added.name, added.enabled, added.schedule) == ("hello", False, "every 1h")
        with pytest.raises(ConflictError):
            await rig.room.install("example:hello")
        assert {it.status.value for it in await rig.room.validate("hello")} <= {"pass", "skip", "warn"}
        changed = await rig.room.configure("hello", {"timeout": 7, "title": "Hello"})
        assert changed.title == "Hello"
        text = (rig.config.pipes_dir / "hello" / "pipe.md").read_text()
        assert text.endswith("---\nHi {{x}}.\n")
        with pytest.raises(ConfigError) as refused:
            await rig.room.configure("hello", {"schedule": "continuous"})
        assert refused.value.exit_code == 2, "CONTRACT §3: input that does not fit"
        assert (rig.config.pipes_dir / "hello" / "pipe.md").read_text() == text
        assert "Hi {{x}}." in await rig.room.rendered("hello")
        assert "./output/1/" in await rig.room.rendered("hello")
        enabled = await rig.room.enable("hello")
        assert enabled.enabled
        assert (await ended(rig, "hello"))[0].status is Status.COMPLETED, "its first run"
        await rig.room.remove("hello")
        with pytest.raises(UnknownUnitError):
            rig.room.get("hello")
        assert len(await rig.rows("hello")) == 1
        made = await rig.room.scaffold("fresh")
        assert (made.name, made.schedule) == ("fresh", "manual")
        assert "pipe_installed" in await rig.words("pipe:hello")


async def test_a_timeout_that_is_cut_is_told_wherever_the_pipe_is(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.room.reconfigure(replace(rig.config, timeout_max_seconds=60.0))
        rig.write("long", "agent: command\ncommand: [sleep, 9]\ntimeout: 10m")
        await rig.room.refresh()
        told = "timeout: 600 s is cut to 60 s (pipes.timeout_max_seconds)"
        assert rig.room.get("long").warnings == (told,)
        assert told in {each.message for each in await rig.room.validate("long")}
        queued = await rig.room.run("long", RunRequest(timeout_seconds=90.0))
        assert queued.plan.warnings == ("timeout: 90 s is cut to 60 s (pipes.timeout_max_seconds)",)
        await rig.room.cancel(queued.id)


async def test_what_is_shown_of_broken_and_of_unknown_pipes(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.write("torn", "schedule: */30 * * * *")
        rig.write("odd", "agent: pii\npreset: nobody")
        await rig.room.refresh()
        report = rig.room.next("torn")
        assert (report.upcoming, "cannot run" in report.sentences[0]) == ((), True)
        checks = {it.name: it for it in await rig.room.validate("odd")}
        assert (checks["agent"].status.value, checks["presets"].status.value) == ("fail", "fail")
        assert any(it.status.value == "fail" for it in await rig.room.validate("torn"))
        assert "disabled" in rig.room.next("odd").sentences[0] or rig.room.get("odd").enabled
        rig.write("torn", "schedule: '*/30 * * * *'\nagent: command\ncommand: cat")
        await rig.room.refresh()
        assert rig.room.get("torn").config_error is None
        # Not the last word of all: each half hour it is due.
        assert [it for it in await rig.words("pipe:torn") if it.startswith("pipe_")][-1] == "pipe_mended"
        good = rig.room.preview("*/30 * * * *", "Europe/Berlin", 3)
        assert (good["valid"], len(good["next"]), good["error"]) == (True, 3, None)
        bad = rig.room.preview("continuous")
        assert (bad["valid"], bad["next"], bad["summary"]) == (False, [], None)
        with pytest.raises(InvalidInputError):
            await rig.room.run("odd", RunRequest(timeout_seconds=0))


async def test_a_look_ends_when_what_another_one_found_is_taken_in(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who refreshes after an edit finds nothing new where the watch was faster; what it means has happened."""
    async with pipe_house(short_tmp) as rig:
        upkeep = rig.room._all.upkeep
        take, reached, go = upkeep._take, asyncio.Event(), asyncio.Event()

        async def held(change: Change) -> None:
            reached.set()
            await go.wait()
            await take(change)

        monkeypatch.setattr(upkeep, "_take", held)
        rig.write("fresh", "agent: command\ncommand: cat")
        first = asyncio.create_task(rig.room.refresh())
        await reached.wait()
        second = asyncio.create_task(rig.room.refresh())
        ended, _ = await asyncio.wait({second}, timeout=0.5)
        go.set()
        await asyncio.gather(first, second)
        assert not ended
        assert "pipe_added" in await rig.words("pipe:fresh")


async def test_a_pipe_that_is_slower_than_its_schedule_is_warned_about(short_tmp: Path) -> None:
    """E5."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("slow", "sleep 0.05", "schedule: every 10m\nenabled: false")
        await rig.run("slow")
        assert not rig.room.get("slow").slower_than_schedule
        rig.room._all.views._seconds["slow"] = 700.0
        view = rig.room.get("slow")
        assert (view.slower_than_schedule, "slower than its schedule" in view.warnings[-1]) == (True, True)


async def test_what_waited_for_a_pipe_that_went_or_was_turned_off_meanwhile_does_not_run(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, scheduler=False) as rig:
        for name in ("gone", "off", "late", "kept"):
            rig.shell(name, "echo", "schedule: every 1h")
        await rig.room.refresh()
        rig.room._all.timetable.start()
        await eventually(lambda: rig.room.health().queued == 4, "four in line")
        await rig.room.detach()
        await rig.put_down()
        (rig.config.pipes_dir / "gone" / "pipe.md").unlink()
        rig.shell("off", "echo", "schedule: every 1h\nenabled: false")
        rig.shell("late", "echo", "schedule: every 2h")
        await rig.open(scheduler=False)
        rows = {it.pipe_name: it for it in await rig.rows()}
        assert {name: rows[name].status for name in rows} == {
            "gone": Status.CANCELLED,
            "off": Status.CANCELLED,
            "late": Status.CANCELLED,
            "kept": Status.QUEUED,
        }
        assert "folder is gone" in (rows["gone"].error_message or "")
        assert not rig.room._house.states.knows("gone")


async def test_who_asks_straight_after_an_edit_is_answered_for_the_file_as_it_is(short_tmp: Path) -> None:
    """The look holds back what is young and does not read; a person has saved it and means it."""
    async with pipe_house(short_tmp) as rig:
        file = rig.shell("p", "echo one") / "pipe.md"
        await rig.room.refresh()
        file.write_text("---\nagent: command\ncommand: [echo, two]\nschedule: nonsense\n---\n")
        with pytest.raises(ConfigError, match="nonsense"):
            await rig.room.run("p")
        assert "fail" in {it.status.value for it in await rig.room.validate("p")}
        assert not await rig.rows()
        file.write_text("---\nagent: command\ncommand: [echo, two]\n---\n")
        assert (await rig.run("p")).stdout == "two\n"
