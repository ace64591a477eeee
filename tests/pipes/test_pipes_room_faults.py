"""A pipe whose file reads well, and that cannot run all the same: listed so, and no run of it passes in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipe_rig import eventually, pipe_house
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.declaring.validate import CheckStatus
from supervisord_py.pipes.execution import ErrorType, Trigger
from supervisord_py.pipes.running import pipe_faults

if TYPE_CHECKING:
    from pathlib import Path

PRESET = '[presets.fast]\nprovider = "openai"\nmodel = "m"\n'
CASES = {
    "stranger": ("agent: claud", 2, "there is no agent 'claud'; did you mean 'claude'?", ErrorType.CONFIG_ERROR),
    "unset": ("agent: pi\npreset: fats", 3, "did you mean 'fast'?", ErrorType.PRESET_NOT_FOUND),
    "careless": ("agent: pi\npreset: auto", 3, "default = true", ErrorType.PRESET_NOT_FOUND),
    "beside": ("agent: command\ncommand: ./go.sh", 3, "./go.sh", ErrorType.AGENT_NOT_FOUND),
    "bare": ("agent: command\ncommand: [px-no-such-program]", 3, "install px-no-such", ErrorType.AGENT_NOT_FOUND),
}


async def test_what_cannot_run_is_listed_with_its_line_and_cure_until_it_can(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_faults, "LOOK_SECONDS", 0.0)
    async with pipe_house(short_tmp) as rig:
        presets, agents = rig.config.presets_file, rig.config.agents_file
        presets.write_text(PRESET)
        for name, (front, _line, _words, _kind) in CASES.items():
            rig.write(name, front)
        folder = rig.shell("sound", "echo fine")
        await rig.room.refresh()
        views = {each.name: each for each in rig.room.snapshot()}
        for name, (_front, line, words, kind) in CASES.items():
            told = views[name].config_error or ""
            assert told.startswith(f"{rig.config.pipes_dir / name / 'pipe.md'}:{line}: "), told
            assert words in told
            done = await rig.run(name)
            assert (done.error_type, done.pid) == (kind, None)
            assert words in (done.error_message or "")
            assert told in rig.room.next(name).sentences[0]
        assert (views["sound"].config_error, rig.room.health().broken) == (None, len(CASES))
        checks = {each.name: each.status for each in await rig.room.validate("careless")}
        assert checks["presets"] is CheckStatus.FAIL
        presets.write_text(f'{PRESET}default = true\n[presets.fats]\nprovider = "openai"\nmodel = "m"\n')
        agents.write_text('[agents.claud]\nargv = ["true"]\nparser = "text"\n')
        program = folder.parent / "beside" / "go.sh"
        program.write_text("#!/bin/sh\n")
        assert "chmod +x" in (rig.room.get("beside").config_error or "")
        program.chmod(0o755)
        (folder.parent / "bare" / ".env").write_text(f"PATH={short_tmp}\n")
        (short_tmp / "px-no-such-program").symlink_to("/bin/true")
        assert [each.name for each in rig.room.snapshot() if each.config_error] == []
        agents.unlink()
        assert "claud" in (rig.room.get("stranger").config_error or "")


async def test_a_change_is_refused_for_what_it_breaks_and_for_nothing_else(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("sound", "echo fine")
        text = (folder / "pipe.md").read_text()
        rig.write("stranger", "agent: claud\ntimeout: 1m")
        rig.write("torn", "agent: claud\nschedule: continuous")
        await rig.room.refresh()
        for changes in ({"agent": "nosuch"}, {"preset": "nosuch"}, {"command": "./nosuch"}):
            for name in ("sound", "stranger") if "preset" in changes else ("sound",):
                with pytest.raises(ConfigError) as refused:
                    await rig.room.configure(name, changes)
                assert (refused.value.extra["key"], refused.value.exit_code) == (next(iter(changes)), 2)
        assert (folder / "pipe.md").read_text() == text
        assert "claud" in ((await rig.room.configure("stranger", {"timeout": "2m"})).config_error or "")
        assert (await rig.room.configure("stranger", {"agent": "pi"})).config_error is None
        with pytest.raises(ConfigError, match="continuous"):
            await rig.room.configure("torn", {"timeout": "2m"})
        assert "claud" in ((await rig.room.configure("torn", {"schedule": "manual"})).config_error or "")


async def test_a_pipe_that_cannot_run_fails_when_it_is_due_and_says_so(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.write("stranger", "agent: claud\nschedule: every 1h")
        await rig.room.refresh()
        await eventually(lambda: rig.room.get("stranger").consecutive_failures, "its time")
        rows = await rig.rows("stranger")
        assert [(it.trigger, it.error_type) for it in rows] == [(Trigger.SCHEDULED, ErrorType.CONFIG_ERROR)]
        assert rig.room.get("stranger").next_run is not None
