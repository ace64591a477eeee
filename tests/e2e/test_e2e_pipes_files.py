"""pipe.md as people treat it: broken in every way, edited under the daemon's eyes, linked, moved away in mid-run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import until
from e2e.pipe_house import DONE, PipeHouse, all_dead, forked, pipes_house
from rounds import mostly_deep

BROKEN = {
    "star": ("schedule: */30 * * * *", 2, "quote it: schedule: '*/30 * * * *'"),
    "clock": ("schedule: 9:30", 2, "pipe.md(5) lists the forms"),
    "tab": ("schedule: manual\ntrigger:\n\tevents: [x]", 4, "use spaces instead of the tab"),
    "twice": ("schedule: manual\ntimeout: 5\ntimeout: 6", 4, "stands twice"),
    "zone": ("schedule: every day at 9am\ntimezone: Europe/Berlni", 3, "Europe/Berlin"),
    "span": ("schedule: manual\ntimeout: soon", 3, "10m"),
    "mute-command": ("schedule: manual\nagent: command", 3, "add command"),
    "february": ("schedule: '0 0 30 2 *'", 2, "day-of-month"),
}


@pytest.fixture(scope="module")
def home() -> Iterator[PipeHouse]:
    with pipes_house() as made:
        yield made
        made.nothing_left()


def problem_of(home: PipeHouse, name: str) -> str:
    return str(home.pipe(name)["config_error"] or "")


def test_what_is_broken_is_listed_with_its_line_and_its_cure_and_harms_nobody_else(home: PipeHouse) -> None:
    for name, (front, _, _) in BROKEN.items():
        home.write(name, front)
    home.fake("sound", "answer:fine")
    until(lambda: {*BROKEN, "sound"} <= home.names(), "all are listed")
    until(lambda: all(problem_of(home, name) for name in BROKEN), "all that is broken is told")
    for name, (_, line, cure) in BROKEN.items():
        found = problem_of(home, name)
        assert found.startswith(f"{home.folder(name) / 'pipe.md'}:{line}: "), found
        assert (cure in found, home.pipe(name)["next_run"]) == (True, None), found
        answer = home.asked(name)
        assert (answer.status, answer.json()["kind"], answer.json()["line"]) == (422, "config_error", line)
        assert answer.json()["unit"] == f"pipe:{name}"
    assert (problem_of(home, "sound"), home.execute("sound").ended) == ("", DONE)
    assert not [each for each in home.rows() if each.pipe_name in BROKEN]
    checked = home.pxctl("pipe", "validate", "star", "sound")
    assert (checked.returncode, "quote it" in checked.stdout) == (1, True)
    assert home.unit("pipe:star")["config_error"] == problem_of(home, "star")
    assert home.get("/api/health")["pipes"]["broken"] == len(BROKEN)


NESTED = "[presets.x]\nmodel = " + "[" * 150 + "]" * 150


@pytest.mark.parametrize("broken", mostly_deep(["[[" * 250, "a = " + "[" * 500, NESTED], NESTED))
def test_a_presets_or_agents_file_that_breaks_the_reader_is_a_fault_of_that_file_alone(
    home: PipeHouse, broken: str
) -> None:
    home.shell("modelless", "echo fine")
    presets, agents = home.home / "presets.toml", home.home / "agents.toml"
    before = agents.read_text()
    try:
        for file in (presets, agents):
            file.write_text(broken)
        assert [home.request("GET", f"/api/{path}").status for path in ("health", "status")] == [200, 200]
        failed = [each["detail"] for each in home.get("/api/doctor")["checks"] if each["status"] == "fail"]
        warnings = home.post("/api/daemon/reload")["warnings"]
        for file in (presets, agents):
            assert any(str(file) in each for each in failed), failed
            assert any(str(file) in each for each in warnings), warnings
        assert home.execute("modelless").ended == DONE
    finally:
        presets.unlink()
        agents.write_text(before)


DEFAULTS = {
    "a wrong key": ('[presets.main]\nprovider = "anthropic"\nmodle = "x"\ndefault = true\n', "modle", ":3"),
    "a name that cannot be": ('[presets.default]\nprovider = "anthropic"\nmodel = "x"\n', "default", ":1"),
    "no TOML": ('[presets.main\nprovider = "anthropic"\n', "TOML", ""),
}


@pytest.mark.parametrize("which", mostly_deep(DEFAULTS, "a wrong key"))
def test_a_default_preset_that_is_broken_fails_who_would_take_it_and_no_other_model_runs(
    home: PipeHouse, which: str
) -> None:
    text, word, line = DEFAULTS[which]
    file = home.home / "presets.toml"
    home.fake("takes-default", "answer:fine")
    home.fake("has-own", "answer:fine", front="model: own-model\nprovider: own")
    home.shell("asks-none", "true")
    try:
        file.write_text(text)
        until(lambda: {"takes-default", "has-own", "asks-none"} <= home.names(), "all are listed")
        told = until(lambda: problem_of(home, "takes-default"), "the fault is told")
        assert (str(file) in told, word in told) == (True, True), told
        assert problem_of(home, "has-own") == problem_of(home, "asks-none") == ""
        done = home.execute("takes-default")
        assert (done.ended, done.started_at) == (("failed", "config_error"), None)
        checked = home.pxctl("pipe", "validate", "takes-default")
        assert (checked.returncode, word in checked.stdout) == (1, True), checked.stdout
        faults = [each["detail"] for each in home.get("/api/doctor")["checks"] if each["name"] == "presets"]
        assert [each for each in faults if f"{file}{line}" in each], faults
        assert f"{file}{line}" in home.pxctl("daemon", "reload").stderr
    finally:
        file.write_text('[presets.main]\nprovider = "acme"\nmodel = "x-large"\ndefault = true\n')
    until(lambda: not problem_of(home, "takes-default"), "it is mended")
    checked = home.pxctl("pipe", "validate", "takes-default")
    assert (checked.returncode, "main" in checked.stdout, "x-large" in checked.stdout) == (0, True, True)
    file.unlink()


def test_an_edit_goes_through_a_link_and_touches_nothing_else(home: PipeHouse) -> None:
    text = (
        "---\r\n# mine\r\nschedule:   manual   # by hand\r\nunknown: {a: 1}\r\nagent: fake\r\n---\r\n"
        "FAKE: answer:x\r\n```yaml\r\nschedule: daily\r\nenabled: false\r\n```\r\n---\r\n{{date}}\r\n"
    )
    real, folder = home.home / "dotfiles" / "linked.md", home.folder("linked")
    real.parent.mkdir()
    real.write_bytes(text.encode())
    real.chmod(0o640)
    folder.mkdir()
    (folder / "pipe.md").symlink_to(real)
    until(lambda: "linked" in home.names(), "it is seen")
    config = "/api/pipes/linked/config"
    for body in ({"timeout": 90}, {"config": {"schedule": "every 2h", "title": "a: b"}}):
        home.post(config, body)
    assert ((folder / "pipe.md").is_symlink(), real.stat().st_mode & 0o777) == (True, 0o640)
    written = real.read_bytes().decode()
    front, _, rest = written.partition("\r\n---\r\n")
    assert rest == text.partition("\r\n---\r\n")[2]
    assert ("# mine" in front, "unknown: {a: 1}" in front, "\n" in written.replace("\r\n", "")) == (True, True, False)
    assert (home.pipe("linked")["schedule"], home.pipe("linked")["title"]) == ("every 2h", "a: b")
    assert home.post(config, {"schedule": "continuous"}, 422)["kind"] == "config_error"
    slip = home.post(config, {"schedul": "every 5h"}, 422)
    assert (slip["pointer"], "did you mean 'schedule'" in slip["detail"]) == ("/schedul", True)
    assert real.read_bytes().decode() == written, "what would break it is not written"
    assert home.post(config, {"title": None})["title"] is None
    real.write_bytes(text.replace("manual", "every 5h").encode())
    until(lambda: home.pipe("linked")["schedule"] == "every 5h", "an edit behind the link is seen")


@pytest.mark.deep
def test_a_single_time_is_taken_as_people_write_it_and_over_where_it_is_past(home: PipeHouse) -> None:
    """No other time is offered than the one that was written; a past one did not run and is not made good."""
    for at, text in enumerate(("in 30m", "tomorrow at 9am", "2099-12-01 10:00")):
        folder = home.shell(name := f"once{at}", "echo ran", f"schedule: {text}")
        until(lambda name=name: name in home.names() and home.pipe(name)["next_run"], "its time is known")
        assert len(home.get(f"/api/pipes/{name}/next")["upcoming"]) == 1
        shutil.rmtree(folder)
    folder = home.shell("bygone", "echo ran", "schedule: at 2020-01-01T00:00:00Z")
    until(lambda: "bygone" in home.names() and problem_of(home, "bygone"), "it is told")
    assert not home.rows("pipe=bygone")
    shutil.rmtree(folder)
    until(lambda: "bygone" not in home.names(), "it is gone")


def is_removed(folder: Path) -> bool:
    """Remove a folder; say whether nobody has put anything into it meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.parametrize("how", mostly_deep(["rm", "DELETE", "pxctl"], "rm", "pxctl"))
def test_a_folder_that_goes_in_mid_run_ends_the_run_first(home: PipeHouse, how: str) -> None:
    name = f"gone-{how.lower()}"
    written = home.home / f"{name}.pids"
    folder = home.fake(name, "ignore-term", "say:so far", "setsid:1000", "hang")
    (folder / ".env").write_text(f"FAKE_PIDS={written}\n")
    first, second = home.begin(name).id, home.begin(name, queue=True).id
    until(lambda: forked(written) and home.output(first), "it has forked, and speaks")
    if how == "rm":  # again and again: the daemon may say in there that the run was cut off, while it goes
        until(lambda: is_removed(folder), "all of it is gone")
    elif how == "DELETE":
        assert home.request("DELETE", f"/api/pipes/{name}").status == 200
    else:
        assert home.pxctl("pipe", "remove", name, "--yes").returncode == 0
    done, waited = home.ended(first), home.ended(second)
    assert (done.ended, done.stdout.strip()) == (("cancelled", "cancelled"), "so far")
    assert (waited.ended, waited.started_at) == (("cancelled", "cancelled"), None)
    assert (all_dead(forked(written)), folder.exists()) == (True, False)
    until(lambda: name not in home.names(), "it is gone")
    assert home.post(f"/api/pipes/{name}/executions/{first}/retry", None, 404)["kind"] == "unknown_unit"


def test_a_pipe_is_installed_whole_disabled_and_checked_or_not_at_all(home: PipeHouse) -> None:
    source = home.home / "elsewhere" / "brought"
    source.mkdir(parents=True)
    (source / "pipe.md").write_text("---\nschedule: every 10s\nagent: fake\n# kept\n---\nFAKE: answer:brought\n")
    (source / "more.txt").write_text("beside it")
    home.json("pipe", "add", str(source))
    text = (home.folder("brought") / "pipe.md").read_text()
    assert ("enabled: false" in text, "# kept" in text) == (True, True)
    assert (home.folder("brought") / "more.txt").read_text() == "beside it"
    assert (home.pipe("brought")["enabled"], home.pipe("brought")["next_run"]) == (False, None)
    assert home.pxctl("pipe", "add", str(source)).returncode == 8, "it is never overwritten"
    (source / "pipe.md").write_text("---\nschedule: 9:30\n---\nx\n")
    refused = home.pxctl("pipe", "add", str(source), "--name", "other")
    assert (refused.returncode, home.folder("other").exists()) == (2, False), refused.stderr
    assert "'9:30' is no schedule" in refused.stderr
    plain = home.pxctl("pipe", "add", "http://127.0.0.1:1/pipe.md")
    assert (plain.returncode != 0, "https" in plain.stderr) == (True, True)
    assert home.pxctl("pipe", "add", "example:disk-digest").returncode == 0
    assert not [each for each in os.listdir(home.home / "pipes") if each.startswith(".")], "nothing is half-made"
    assert home.execute("disk-digest").ended == DONE, "an example works without agent and network"
    assert home.pxctl("pipe", "new", "mine").returncode == 0
    assert (problem_of(home, "mine"), home.pipe("mine")["schedule"]) == ("", "manual")
