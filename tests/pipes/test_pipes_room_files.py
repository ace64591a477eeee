"""What people do to pipes' files and wish of pipes; pipes that cannot run: listed so, no run of them in silence."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipe_rig import PipeRig, eventually, pipe_house
from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.ledger.pipes import Status


async def test_what_waited_for_a_pipe_that_went_or_was_turned_off_meanwhile_does_not_run(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, scheduler=False) as rig:
        for name in ("gone", "off", "kept"):
            rig.shell(name, "echo", "schedule: every 1h")
        await rig.room.files.refresh()
        rig.room.task(rig.room.timetable.run())
        await eventually(lambda: rig.room.health()["queued"] == 3, "three in line")
        await rig.room.detach()
        await rig.put_down()
        (rig.config.pipes_dir / "gone" / "pipe.md").unlink()
        rig.shell("off", "echo", "schedule: every 1h\nenabled: false")
        await rig.open(scheduler=False)
        rows = {it.pipe_name: it for it in await rig.rows()}
        want = {"gone": Status.CANCELLED, "off": Status.CANCELLED, "kept": Status.QUEUED}
        assert {name: rows[name].status for name in rows} == want
        assert "folder is gone" in (rows["gone"].error_message or "")
        assert "gone" not in rig.room.states.names


PRESET = '[presets.fast]\nprovider = "openai"\nmodel = "m"\n'
CASES = {
    "stranger": ("agent: claud", 2, "there is no agent 'claud'; did you mean 'claude'?"),
    "unset": ("agent: pi\npreset: fats", 3, "did you mean 'fast'?"),
    "careless": ("agent: pi\npreset: auto", 3, "default = true"),
    "beside": ("command: ./go.sh", 2, "./go.sh"),
    "bare": ("command: [px-no-such-program]", 2, "install px-no-such"),
    "torn": ("schedule: continuous", 2, "no schedule"),
}


async def test_what_cannot_run_is_listed_with_its_line_and_cure_until_it_can(own_rig: PipeRig) -> None:
    presets, agents = own_rig.config.presets_file, own_rig.config.agents_file
    presets.write_text(PRESET)
    for name, (front, _line, _words) in CASES.items():
        own_rig.write(name, front)
    folder = own_rig.shell("sound", "echo fine", "timeout: 10m")
    await own_rig.room.files.refresh()
    views = {each.name: each for each in own_rig.room.snapshot()}
    for name, (_front, line, words) in CASES.items():
        told = views[name].config_error or ""
        assert told.startswith(f"{own_rig.config.pipes_dir / name / 'pipe.md'}:{line}: "), told
        assert (words in told, told in own_rig.room.next(name)["sentences"][0]) == (True, True)
        assert "fail" in {it.verdict for it in await own_rig.room.validate(name)}
    assert (views["sound"].config_error, own_rig.room.health()["broken"]) == (None, len(CASES))
    presets.write_text(f'{PRESET}default = true\n[presets.fats]\nprovider = "openai"\nmodel = "m"\n')
    agents.write_text('[agents.claud]\nargv = ["true"]\nparser = "text"\n')
    program = folder.parent / "beside" / "go.sh"
    program.write_text("#!/bin/sh\n")
    assert "chmod +x" in (own_rig.room.get("beside").config_error or "")
    program.chmod(0o755)
    (folder.parent / "bare" / ".env").write_text(f"PATH={own_rig.folder}\n")
    (own_rig.folder / "px-no-such-program").symlink_to("/bin/true")
    assert [each.name for each in own_rig.room.snapshot() if each.config_error] == ["torn"]
    agents.unlink()
    assert "claud" in (own_rig.room.get("stranger").config_error or "")
    with own_rig.settings(timeout_max_seconds=60.0):
        told = "timeout: 600 s is cut to 60 s (pipes.timeout_max_seconds)"
        assert own_rig.room.get("sound").warnings == (told,)
        with pytest.raises(InvalidInputError, match="at most 60 s"):
            await own_rig.room.run("sound", seconds=90.0)


async def test_a_change_is_refused_for_what_it_breaks_and_for_nothing_else(own_rig: PipeRig) -> None:
    folder = own_rig.shell("sound", "echo fine")
    text = (folder / "pipe.md").read_text()
    own_rig.write("stranger", "agent: claud\ntimeout: 1m")
    own_rig.write("torn", "agent: claud\nschedule: continuous")
    await own_rig.room.files.refresh()
    for changes in ({"agent": "nosuch"}, {"preset": "nosuch"}, {"command": "./nosuch"}):
        for name in ("sound", "stranger") if "preset" in changes else ("sound",):
            with pytest.raises(ConfigError) as refused:
                await own_rig.room.files.configure(name, changes)
            assert (refused.value.extra["pointer"], refused.value.exit_code) == (f"/{next(iter(changes))}", 2)
    assert (folder / "pipe.md").read_text() == text
    assert "claud" in ((await own_rig.room.files.configure("stranger", {"timeout": "2m"})).config_error or "")
    assert (await own_rig.room.files.configure("stranger", {"agent": "pi"})).config_error is None
    with pytest.raises(ConfigError, match="continuous"):
        await own_rig.room.files.configure("torn", {"timeout": "2m"})
    assert "claud" in ((await own_rig.room.files.configure("torn", {"schedule": "manual"})).config_error or "")


async def test_a_wish_outlives_a_restart_and_is_over_once_the_file_says_another_word(own_rig: PipeRig) -> None:
    for word, enabled in (("true", True), ("false", False), ("true", True)):
        own_rig.shell("p", "echo", f"enabled: {word}")
        await own_rig.room.files.refresh()
        assert own_rig.room.get("p").enabled is enabled
        if word == "true":
            await own_rig.room.enable("p", enabled=False)
            await own_rig.restart()
            assert not own_rig.room.get("p").enabled


async def test_validate_warns_of_providers_presets_and_times(own_rig: PipeRig) -> None:
    """A9 and A8: what does not keep it from running is told, and is no failure."""
    program = own_rig.folder / "teller"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    own_rig.config.agents_file.write_text(
        f'[agents.teller]\nargv = ["{program}"]\nprompt = "stdin"\nparser = "text"\n'
        '[agents.teller.provider_keys]\nacme = "ACME_KEY"\n'
    )
    own_rig.config.presets_file.write_text(
        '[presets.one]\nprovider = "acmee"\n[presets.two]\nprovider = "acme"\n[presets.three]\nprovider = 3\n'
    )
    own_rig.write("odd", "agent: teller\npreset: [one, '*']\nschedule: at 2020-01-01T00:00:00Z\nenabled: false")
    await own_rig.room.files.refresh()
    over, doubt, ready = await own_rig.room.validate("odd")
    assert (over.verdict, over.detail) == ("warn", "its schedule is over: has no time to come")
    assert (doubt.verdict, "'acmee' is not known to be one of teller's" in doubt.detail) == ("warn", True)
    assert (ready.verdict, ready.detail) == ("pass", "it runs teller with one, then two: acmee")
    await own_rig.room.enable("odd")
    failed = [it for it in await own_rig.room.validate("odd") if it.verdict == "fail"]
    told = "write a time that will come, or `manual`"
    assert [(it.name, it.line, it.hint) for it in failed] == [("schedule", 4, told)]
    own_rig.write("bare", "agent: teller\nlookback: 1h", body="")
    (own_rig.config.pipes_dir / "bare" / ".env").write_text("KEY=1\nnonsense here\n")
    (own_rig.config.pipes_dir / "bare" / ".env").chmod(0o644)
    odd = {it.name: it.verdict for it in await own_rig.room.validate("bare")}
    assert odd == {"pipe": "warn", "prompt": "fail", ".env": "warn", "agent": "warn"}


async def test_a_schedule_that_has_run_to_its_end_is_warned_of_and_is_no_error(own_rig: PipeRig) -> None:
    """Every schedule has a next run, a config_error, or says that it is over."""
    at = f"{datetime.fromtimestamp(own_rig.time.clocks.wall() + 3600, UTC):%Y-%m-%dT%H:%M:%SZ}"
    own_rig.shell("once", "echo", f"schedule: at {at}")
    await own_rig.room.files.refresh()
    assert (own_rig.room.get("once").warnings, own_rig.room.get("once").next_run is None) == ((), False)
    own_rig.time.pass_by(3601)
    own_rig.room.due_bell.set()
    await own_rig.ended("once")
    view = await own_rig.room.enable("once")
    over = "its schedule is over: has no time to come"
    assert (view.enabled, view.next_run, view.config_error, view.warnings) == (True, None, None, (over,))
    assert over in [it.detail for it in await own_rig.room.validate("once") if it.verdict == "warn"]
