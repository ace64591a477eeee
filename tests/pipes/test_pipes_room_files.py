"""What people do to pipes' files and wish of pipes; pipes that cannot run: listed so, no run of them in silence."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipe_rig import PipeRig, eventually, pipe_house
from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.ledger.pipes import ErrorType, Status


async def test_a_timeout_above_the_maximum_is_told(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, timeout_max_seconds=60.0) as rig:
        rig.write("long", "agent: command\ncommand: [sleep, 9]\ntimeout: 10m")
        await rig.room.files.refresh()
        told = "timeout: 600 s is cut to 60 s (pipes.timeout_max_seconds)"
        assert rig.room.get("long").warnings == (told,)
        assert told in {each.detail for each in await rig.room.validate("long")}
        with pytest.raises(InvalidInputError, match="at most 60 s"):
            await rig.room.run("long", seconds=90.0)


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
    "stranger": ("agent: claud", 2, "there is no agent 'claud'; did you mean 'claude'?", ErrorType.CONFIG_ERROR),
    "unset": ("agent: pi\npreset: fats", 3, "did you mean 'fast'?", ErrorType.PRESET_NOT_FOUND),
    "careless": ("agent: pi\npreset: auto", 3, "default = true", ErrorType.PRESET_NOT_FOUND),
    "beside": ("agent: command\ncommand: ./go.sh", 3, "./go.sh", ErrorType.AGENT_NOT_FOUND),
    "bare": ("agent: command\ncommand: [px-no-such-program]", 3, "install px-no-such", ErrorType.AGENT_NOT_FOUND),
}


async def test_what_cannot_run_is_listed_with_its_line_and_cure_until_it_can(own_rig: PipeRig) -> None:
    presets, agents = own_rig.config.presets_file, own_rig.config.agents_file
    presets.write_text(PRESET)
    for name, (front, _line, _words, _kind) in CASES.items():
        own_rig.write(name, front)
    folder = own_rig.shell("sound", "echo fine")
    await own_rig.room.files.refresh()
    views = {each.name: each for each in own_rig.room.snapshot()}
    for name, (_front, line, words, kind) in CASES.items():
        told = views[name].config_error or ""
        assert told.startswith(f"{own_rig.config.pipes_dir / name / 'pipe.md'}:{line}: "), told
        assert words in told
        done = await own_rig.run(name)
        assert (done.error_type, done.pid) == (kind, None)
        assert words in (done.error_message or "")
        assert told in own_rig.room.next(name)["sentences"][0]
    assert (views["sound"].config_error, own_rig.room.health()["broken"]) == (None, len(CASES))
    checks = {each.name: each.verdict for each in await own_rig.room.validate("careless")}
    assert checks["preset"] == "fail"
    presets.write_text(f'{PRESET}default = true\n[presets.fats]\nprovider = "openai"\nmodel = "m"\n')
    agents.write_text('[agents.claud]\nargv = ["true"]\nparser = "text"\n')
    program = folder.parent / "beside" / "go.sh"
    program.write_text("#!/bin/sh\n")
    assert "chmod +x" in (own_rig.room.get("beside").config_error or "")
    program.chmod(0o755)
    (folder.parent / "bare" / ".env").write_text(f"PATH={own_rig.folder}\n")
    (own_rig.folder / "px-no-such-program").symlink_to("/bin/true")
    assert [each.name for each in own_rig.room.snapshot() if each.config_error] == []
    agents.unlink()
    assert "claud" in (own_rig.room.get("stranger").config_error or "")


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


def in_an_hour(rig: PipeRig) -> str:
    """Return a schedule of one time."""
    return f"schedule: at {datetime.fromtimestamp(rig.time.clocks.wall() + 3600, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def test_a_wish_outlives_a_restart_and_is_over_once_the_file_says_something_new(
    own_rig: PipeRig,
) -> None:
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
    found = await own_rig.room.validate("odd")
    assert {it.verdict for it in found} == {"pass", "warn"}
    told = " ".join(it.detail for it in found)
    assert "the provider 'acmee' is not known to be one of teller's" in told
    assert "its schedule is over: has no time to come" in told
    assert found[-1].detail == "it runs teller with one, then two: acmee"
    await own_rig.room.enable("odd")
    failed = [it for it in await own_rig.room.validate("odd") if it.verdict == "fail"]
    assert [(it.name, it.line, it.hint) for it in failed] == [
        ("schedule", 4, "write a time that will come, or `manual`")
    ]
    own_rig.write("bare", "agent: teller\nlookback: 1h", body="")
    (own_rig.config.pipes_dir / "bare" / ".env").write_text("KEY=1\nnonsense here\n")
    (own_rig.config.pipes_dir / "bare" / ".env").chmod(0o644)
    odd = {it.name: it.verdict for it in await own_rig.room.validate("bare")}
    assert odd == {"pipe": "warn", "prompt": "fail", ".env": "warn", "agent": "warn"}
    own_rig.write("torn", "schedule: continuous\npreset: ['*', a]")
    assert [(it.name, it.line) for it in await own_rig.room.validate("torn")] == [("preset", 3)]
    assert not any("fails at once" in each for each in own_rig.room.next("odd")["sentences"])


async def test_a_schedule_that_has_run_to_its_end_is_warned_of_and_is_no_error(own_rig: PipeRig) -> None:
    """Every schedule has a next run, a config_error, or says that it is over."""
    own_rig.shell("once", "echo", in_an_hour(own_rig))
    await own_rig.room.files.refresh()
    assert (own_rig.room.get("once").warnings, own_rig.room.get("once").next_run is None) == ((), False)
    own_rig.time.pass_by(3601)
    own_rig.room.due_bell.set()
    await eventually(lambda: own_rig.room.get("once").last_success, "its run")
    await eventually(lambda: not own_rig.room.of_pipe("once"), "its end")
    view = await own_rig.room.enable("once")
    assert (view.enabled, view.next_run, view.config_error, len(view.warnings)) == (True, None, None, 1)
    assert view.warnings[0] == "its schedule is over: has no time to come"
    assert view.warnings[0] in [it.detail for it in await own_rig.room.validate("once") if it.verdict == "warn"]
    assert view.warnings in [it.warnings for it in own_rig.room.snapshot()]
