"""What was wished of a pipe, what was decided about it, and what a new word of its file means for both."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from pipe_rig import eventually, pipe_house
from supervisord_py.errors import BadRequestError
from supervisord_py.ledger import pipe_executions
from supervisord_py.pipes.models import PublishedEvent

if TYPE_CHECKING:
    from pathlib import Path

    from pipe_rig import PipeRig


def in_an_hour(rig: PipeRig) -> str:
    """Return a schedule of one time."""
    return f"schedule: at {datetime.fromtimestamp(rig.time.clocks.wall() + 3600, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def test_a_wish_is_over_for_good_once_the_file_says_something_new(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        for word, enabled in (("true", True), ("false", False), ("true", True)):
            rig.shell("p", "echo", f"enabled: {word}")
            await rig.room.upkeep.refresh()
            assert rig.room.get("p").enabled is enabled
            if word == "true":
                await rig.room.enable("p", enabled=False)
                await rig.room.upkeep.refresh()
                assert not rig.room.get("p").enabled


async def test_a_skip_stays_the_last_decision_while_the_pipe_waits_for_its_next_time(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        for_long = "timeout: 80000"  # it runs on while the clocks are turned
        rig.shell("slow", "exec sleep 1000", f"schedule: every 30m\n{for_long}")
        rig.shell("later", "echo", "schedule: every 30m\nrun_on_enable: false")
        await rig.room.upkeep.refresh()
        await eventually(lambda: rig.room.get("slow").pid, "the start")
        timetable = rig.room.timetable
        await eventually(
            lambda: type(timetable.decision_on(rig.room.definition("later"))).__name__ == "Wait", "a decision"
        )
        report = rig.room.next("later")
        assert (report.last_decision, (report.now or "")[:9], len(report.upcoming)) == (None, "waits for", 5)
        assert "first run" in rig.room.next("slow").last_decision.text
        rig.time.pass_by(1801)
        timetable.wake()
        await eventually(lambda: "still running" in rig.room.get("slow").last_decision.text, "a skip")
        timetable.wake()
        await eventually(
            lambda: type(timetable.decision_on(rig.room.definition("slow"))).__name__ == "Wait", "what follows"
        )
        assert "still running: execution" in rig.room.next("slow").last_decision.text
        rig.shell("slow", "exec sleep 1000", f"schedule: every 40m\n{for_long}")
        await rig.room.upkeep.refresh()
        assert rig.room.get("slow").last_decision is None
        await rig.room.cancel_pipe("slow")


async def test_validate_warns_of_providers_presets_and_times(short_tmp: Path) -> None:
    """A9 and A8: what does not keep it from running is told, and is no failure."""
    async with pipe_house(short_tmp) as rig:
        program = rig.folder / "teller"
        program.write_text("#!/bin/sh\nexec cat\n")
        program.chmod(0o755)
        rig.config.agents_file.write_text(
            f'[agents.teller]\nargv = ["{program}"]\nprompt = "stdin"\nparser = "text"\n'
            '[agents.teller.provider_keys]\nacme = "ACME_KEY"\n'
        )
        rig.config.presets_file.write_text(
            '[presets.one]\nprovider = "acme"\n[presets.two]\nprovider = "acmee"\n[presets.three]\nprovider = 3\n'
        )
        rig.write("odd", "agent: teller\npreset: [one, '*']\nschedule: at 2020-01-01T00:00:00Z\nenabled: false")
        await rig.room.upkeep.refresh()
        warned = {it.name: it.message for it in await rig.room.files.validate("odd") if it.status != "pass"}
        assert warned["agent"].startswith("the provider 'acmee' is not known to be one of teller's")
        assert warned["presets"].startswith("the preset 'three' is left out: ")
        assert warned["schedule"].startswith("no run of it comes by itself: ")
        assert {it.status for it in await rig.room.files.validate("odd")} == {"pass", "warn"}
        await rig.room.enable("odd")
        failed = [it for it in await rig.room.files.validate("odd") if it.status == "fail"]
        assert [(it.name, it.line, it.hint) for it in failed] == [
            ("schedule", 4, "write a time that will come, or `manual`")
        ]
        assert not any("fails at once" in each for each in rig.room.next("odd").sentences)


async def test_what_does_not_run_by_itself_has_neither_a_decision_nor_a_time_to_come(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("hand", "echo")
        rig.shell("event", "echo", "trigger:\n  events: [thing]")
        rig.shell("off", "echo", "schedule: every 1h\nenabled: false")
        rig.shell("past", "echo", "schedule: at 2020-01-01T00:00:00Z")
        await rig.room.upkeep.refresh()
        said = await eventually(lambda: rig.room.next("past").last_decision, "the refusal")
        assert "refused" in said.text
        listed = rig.room.get("past").config_error
        assert listed is not None, "every schedule has a next run or a config_error"
        assert listed.startswith(f"{rig.config.pipes_dir}/past/pipe.md:4: schedule: Wed 2020-01-01")
        assert "write a time that will come" in listed
        assert rig.room.health().broken == 1
        for name, sentences in (("hand", 0), ("event", 1), ("off", 3)):
            report = rig.room.next(name)
            assert (report.last_decision, report.upcoming, rig.room.get(name).next_run) == (None, (), None)
            assert (len(report.sentences) > sentences, report.events) == (True, ("thing",) if name == "event" else ())
        assert [each.partition(" ")[0] for each in rig.room.next("off").sentences[:1]] == ["it"]
        assert rig.room.next("off").now is None
        assert rig.room.next("event").sentences[-1] == "events: thing"


async def test_a_schedule_that_has_run_to_its_end_is_warned_of_and_is_no_error(short_tmp: Path) -> None:
    """Every schedule has a next run, a config_error, or says that it is over."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("once", "echo", in_an_hour(rig))
        await rig.room.upkeep.refresh()
        assert (rig.room.get("once").warnings, rig.room.get("once").next_run is None) == ((), False)
        rig.time.pass_by(3601)
        rig.room.timetable.wake()
        await eventually(lambda: rig.room.get("once").last_success, "its run")
        await eventually(lambda: not rig.room.of_pipe("once"), "its end")
        view = await rig.room.enable("once")
        assert (view.enabled, view.next_run, view.config_error, len(view.warnings)) == (True, None, None, 1)
        assert view.warnings[0].startswith("its schedule is over: was due once, at ")
        assert "; it last ran " in view.warnings[0]
        assert view.warnings[0].endswith(", and will not run again by schedule")
        assert view.warnings[0] in [it.message for it in await rig.room.files.validate("once") if it.status == "warn"]
        assert view.warnings in [it.warnings for it in rig.room.snapshot()]


async def test_a_new_schedule_is_told_at_once_and_not_what_the_old_one_waited_for(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo", "schedule: '*/30 * * * *'")
        await rig.room.upkeep.refresh()
        await eventually(lambda: rig.room.timetable.decision_on(rig.room.definition("p")), "a decision")
        assert rig.room.next("p").summary.endswith(" (UTC)"), "the zone of the settings"
        view = await rig.room.files.configure("p", {"schedule": "manual"})
        assert (view.schedule, view.next_run, view.last_decision) == ("manual", None, None)


async def test_what_waits_for_a_pipe_that_is_not_there_is_warned_of(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo", "trigger: ['pipe_completed:q']")
        await rig.room.upkeep.refresh()
        said = "trigger: pipe_completed:q cannot come: there is no pipe 'q' here"
        assert rig.room.get("p").warnings == (said,)
        assert [it.message for it in await rig.room.files.validate("p") if it.status == "warn"] == [said]
        rig.shell("q", "echo")
        await rig.room.upkeep.refresh()
        assert rig.room.get("p").warnings == ()
        with pytest.raises(BadRequestError):
            await rig.room.publish_event(PublishedEvent("pipe_completed:q"))


async def test_files_of_a_pipe_that_are_no_news_to_it_are_warned_of(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo", "trigger: ['file_changed:pipe.md', 'file_changed:in/']")
        await rig.room.upkeep.refresh()
        own = "pipe.md, output and .env of its own folder do not start a pipe"
        assert rig.room.get("p").warnings == (f"trigger: file_changed:pipe.md cannot come: {own}",)


async def test_an_example_that_needs_what_is_not_there_says_so_when_it_is_added(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        source = rig.folder / "elsewhere"
        source.mkdir()
        (source / "pipe.md").write_text("---\nagent: command\ncommand: ./nothere\n---\n")
        added = await rig.room.files.install(str(source), name="p")
        assert len(added.warnings) == 1
        assert added.warnings[0].startswith("it cannot run until this is mended: ")
        assert "nothere" in added.warnings[0]


async def test_who_is_queued_has_a_place_and_a_timeout_begins_with_the_process(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "exec sleep 1000", "timeout: 100")
        await rig.room.upkeep.refresh()
        queued = await rig.room.run("p")
        assert (queued.status.value, queued.position) == ("queued", 1)
        await eventually(lambda: rig.room.get("p").pid, "the start")
        live, clocks = rig.room.running("p"), rig.time.clocks
        assert live is not None
        assert live.execution.started_at is not None
        over = live.deadline - clocks.boot() + clocks.wall()  # in this order: who is held up in between is late
        assert over - live.execution.started_at >= 100 - 0.001, "the row shows whole milliseconds"
        assert (await rig.room.execution(queued.id)).position is None
        told = live.execution.started_at
        await rig.room.cancel_pipe("p")
        row = await pipe_executions.EXECUTIONS.get(rig.ledger, queued.id)
        assert row is not None
        assert row.started_at == told, "the same moment to the millisecond, for whoever compares"


async def test_a_one_time_pipe_runs_again_at_another_time_and_a_disabled_one_does_not(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("off", "echo", "schedule: at 2099-01-01T00:00:00Z")
        await rig.room.upkeep.refresh()
        await rig.room.enable("off", enabled=False)
        for count in (1, 2):
            rig.shell("once", "echo", in_an_hour(rig))
            rig.shell("off", "echo", in_an_hour(rig))
            await rig.room.upkeep.refresh()
            assert (rig.room.get("once").enabled, rig.room.get("off").enabled) == (True, False)
            rig.time.pass_by(3601)
            rig.room.timetable.wake()
            await eventually(lambda: not rig.room.get("once").enabled, "its time")
            await eventually(lambda: not rig.room.of_pipe("once"), "its end")
            assert len(await rig.rows("once")) == count
        assert not await rig.rows("off")
