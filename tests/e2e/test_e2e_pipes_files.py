"""pipe.md as people treat it: broken in every way, edited under the daemon's eyes, linked, moved away in mid-run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import House, until
from e2e.pipe_house import (
    all_dead,
    asked,
    begin,
    ended,
    fake,
    folder_of,
    nothing_left,
    output,
    pipe,
    pipes_house,
    row,
    rows,
    run,
    shell,
    write,
)
from rounds import mostly_deep

BROKEN = {
    "star": ("schedule: */30 * * * *", 2, "quote it: schedule: '*/30 * * * *'"),
    "clock": ("schedule: 9:30", 2, "pipe.md(5) lists the forms"),
    "tab": ("schedule: manual\ntrigger:\n\tevents: [x]", 4, "use spaces instead of the tab"),
    "twice": ("schedule: manual\ntimeout: 5\ntimeout: 6", 4, "stands twice"),
    "zone": ("schedule: every day at 9am\ntimezone: Europe/Berlni", 3, "Europe/Berlin"),
    "span": ("schedule: manual\ntimeout: soon", 3, "10m"),
    "minus": ("schedule: manual\nretries: -1", 3, "from 0"),
    "dense": ("schedule: every 0m", 2, "shortest"),
    "mute-command": ("schedule: manual\nagent: command", 3, "add command"),
    "perhaps": ("schedule: manual\nenabled: perhaps", 3, "true or false"),
    "february": ("schedule: '0 0 30 2 *'", 2, "day-of-month"),
}


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    with pipes_house() as made:
        yield made
        nothing_left(made)


def problem_of(home: House, name: str) -> str | None:
    found: str | None = pipe(home, name)["config_error"]
    return found


def names(home: House) -> set[str]:
    return {each["name"] for each in home.get("/api/pipes")["pipes"]}


def test_what_is_broken_is_listed_with_its_line_and_its_cure_and_harms_nobody_else(home: House) -> None:
    for name, (front, _, _) in BROKEN.items():
        write(home, name, front)
    fake(home, "sound", "answer:fine")
    until(lambda: {*BROKEN, "sound"} <= names(home), "all are listed")
    until(lambda: not any(problem_of(home, name) is None for name in BROKEN), "all that is broken is told")
    for name, (_, line, cure) in BROKEN.items():
        found = problem_of(home, name) or ""
        assert found.startswith(f"{folder_of(home, name) / 'pipe.md'}:{line}: "), found
        assert cure in found, found
        assert pipe(home, name)["next_run"] is None
        answer = asked(home, name)
        assert (answer.status, answer.json()["kind"]) == (422, "config_error"), answer.body
        assert (answer.json()["line"], answer.json()["unit"]) == (line, f"pipe:{name}")
    assert (problem_of(home, "sound"), run(home, "sound").ended) == (None, ("completed", None))
    assert not [each for each in rows(home) if each.pipe_name in BROKEN]
    checked = home.pxctl("pipe", "validate", "star", "sound")
    assert checked.returncode == 1
    assert "quote it" in checked.stdout
    units = {each["unit"]: each for each in home.get("/api/status")["units"]}
    assert units["pipe:star"]["config_error"] == problem_of(home, "star")
    assert home.get("/api/health")["pipes"]["broken"] == len(BROKEN)


MANY = "[presets.x]\nmodel = " + "[" * 150 + "]" * 150


@pytest.mark.parametrize("broken", mostly_deep(["[[" * 250, "a = " + "[" * 500, MANY], MANY))
def test_a_presets_or_agents_file_that_breaks_the_reader_is_a_fault_of_that_file_alone(
    home: House, broken: str
) -> None:
    shell(home, "modelless", "echo fine")
    files = [home.home / "presets.toml", home.home / "agents.toml"]
    before = [file.read_text() if file.exists() else None for file in files]
    try:
        for file in files:
            file.write_text(broken)
        assert home.request("GET", "/api/health").status == 200
        assert home.request("GET", "/api/status").status == 200
        checks = home.get("/api/doctor")["checks"]
        for file in files:
            assert [each for each in checks if each["status"] == "fail" and str(file) in each["detail"]], checks
        warnings = home.request("POST", "/api/daemon/reload").json()["warnings"]
        assert all(any(str(file) in each for each in warnings) for file in files), warnings
        assert run(home, "modelless").ended == ("completed", None)
    finally:
        for file, text in zip(files, before, strict=True):
            file.unlink() if text is None else file.write_text(text)


DEFAULTS = {
    "a wrong key": ('[presets.main]\nprovider = "anthropic"\nmodle = "x"\ndefault = true\n', "modle", 3),
    "a name that cannot be": ('[presets.default]\nprovider = "anthropic"\nmodel = "x"\n', "default", 1),
    "no TOML": ('[presets.main\nprovider = "anthropic"\n', "TOML", None),
}


@pytest.mark.parametrize("which", mostly_deep(DEFAULTS, "a wrong key"))
def test_a_default_preset_that_is_broken_fails_who_would_take_it_and_no_other_model_runs(
    home: House, which: str
) -> None:
    text, word, line = DEFAULTS[which]
    file = home.home / "presets.toml"
    fake(home, "takes-default", "answer:fine")
    fake(home, "has-own", "answer:fine", front="model: own-model\nprovider: own")
    write(home, "asks-none", "schedule: manual\nagent: command\ncommand: 'true'")
    try:
        file.write_text(text)
        until(lambda: {"takes-default", "has-own", "asks-none"} <= names(home), "all are listed")
        told = until(lambda: problem_of(home, "takes-default"), "the fault is told") or ""
        assert str(file) in told
        assert word in told
        assert (pipe(home, "has-own")["config_error"], pipe(home, "asks-none")["config_error"]) == (None, None)
        done = run(home, "takes-default")
        assert (done.ended, done.started_at) == (("failed", "config_error"), None)
        checked = home.pxctl("pipe", "validate", "takes-default")
        assert (checked.returncode, word in checked.stdout) == (1, True), checked.stdout
        place = str(file) if line is None else f"{file}:{line}"
        faults = [each["detail"] for each in home.get("/api/doctor")["checks"] if each["name"] == "presets"]
        assert [each for each in faults if place in each], faults
        assert place in home.pxctl("daemon", "reload").stderr
    finally:
        file.write_text('[presets.main]\nprovider = "acme"\nmodel = "x-large"\ndefault = true\n')
    until(lambda: pipe(home, "takes-default")["config_error"] is None, "it is mended")
    checked = home.pxctl("pipe", "validate", "takes-default")
    assert (checked.returncode, "main" in checked.stdout, "x-large" in checked.stdout) == (0, True, True)
    file.unlink()


def test_an_edit_goes_through_a_link_and_touches_nothing_else(home: House) -> None:
    dotfiles = home.home / "dotfiles"
    dotfiles.mkdir()
    text = (
        "---\r\n# mine\r\nschedule:   manual   # by hand\r\nunknown: {a: 1}\r\nagent: fake\r\n---\r\n"
        "FAKE: answer:x\r\n```yaml\r\nschedule: daily\r\nenabled: false\r\n```\r\n---\r\n{{date}}\r\n"
    )
    real = dotfiles / "linked.md"
    real.write_bytes(text.encode())
    real.chmod(0o640)
    folder = folder_of(home, "linked")
    folder.mkdir()
    (folder / "pipe.md").symlink_to(real)
    until(lambda: home.request("GET", "/api/pipes/linked").status == 200, "it is seen")
    for body in ({"timeout": 90}, {"config": {"schedule": "every 2h", "title": "a: b"}}):
        assert home.request("POST", "/api/pipes/linked/config", body).status == 200
    assert (folder / "pipe.md").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    written = real.read_bytes().decode()
    front, _, body_ = written.partition("\r\n---\r\n")
    assert body_ == text.partition("\r\n---\r\n")[2]
    assert "# mine" in front
    assert "unknown: {a: 1}" in front
    assert "\n" not in written.replace("\r\n", "")
    assert (pipe(home, "linked")["schedule"], pipe(home, "linked")["title"]) == ("every 2h", "a: b")
    refused = home.request("POST", "/api/pipes/linked/config", {"schedule": "continuous"})
    assert (refused.status, refused.json()["kind"]) == (422, "config_error")
    slip = home.request("POST", "/api/pipes/linked/config", {"schedul": "every 5h"})
    assert (slip.status, slip.json()["pointer"]) == (422, "/schedul")
    assert "did you mean 'schedule'" in slip.json()["detail"]
    assert real.read_bytes().decode() == written, "what would break it is not written"
    assert home.request("POST", "/api/pipes/linked/config", {"title": None}).json()["title"] is None
    real.write_bytes(text.replace("manual", "every 5h").encode())
    until(lambda: pipe(home, "linked")["schedule"] == "every 5h", "an edit behind the link is seen")


@pytest.mark.deep
def test_a_single_time_is_taken_as_people_write_it_and_over_where_it_is_past(home: House) -> None:
    """No other time is offered than the one that was written; a past one did not run and is not made good."""
    folder = shell(home, "once", "echo ran", "schedule: 2099-12-01 10:00")
    until(lambda: "once" in names(home) and pipe(home, "once")["next_run"], "its time is known")
    assert len(home.get("/api/pipes/once/next")["upcoming"]) == 1
    shutil.rmtree(folder)
    folder = shell(home, "bygone", "echo ran", "schedule: at 2020-01-01T00:00:00Z")
    until(lambda: "bygone" in names(home) and problem_of(home, "bygone"), "it is told")
    assert not [each for each in rows(home) if each.pipe_name == "bygone"]
    shutil.rmtree(folder)
    until(lambda: "bygone" not in names(home), "it is gone")


def is_removed(folder: Path) -> bool:
    """Remove a folder; say whether nobody has put anything into it meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.parametrize("how", mostly_deep(["rm", "DELETE", "pxctl"], "rm", "pxctl"))
def test_a_folder_that_goes_in_mid_run_ends_the_run_first(home: House, how: str) -> None:
    name = f"gone-{how.lower()}"
    written = home.home / f"{name}.pids"
    folder = fake(home, name, "ignore-term", "say:so far", "setsid:1000", "hang")
    (folder / ".env").write_text(f"FAKE_PIDS={written}\n")
    first, second = begin(home, name).id, begin(home, name, queue=True).id
    until(lambda: written.exists() and written.read_text().count("\n") == 1, "it has forked")
    until(lambda: output(home, first), "it speaks")
    if how == "rm":  # again and again: the daemon may say in there that the run was cut off, while it goes
        until(lambda: is_removed(folder), "all of it is gone")
    elif how == "DELETE":
        assert home.request("DELETE", f"/api/pipes/{name}").status == 200
    else:
        assert home.pxctl("pipe", "remove", name, "--yes").returncode == 0
    done = ended(home, first)
    assert (done.ended, done.stdout.strip()) == (("cancelled", "cancelled"), "so far")
    assert ended(home, second).ended == ("cancelled", "cancelled")
    assert row(home, second).started_at is None
    assert all_dead_of(written)
    assert not folder.exists()
    until(lambda: home.request("GET", f"/api/pipes/{name}").status == 404, "it is gone")
    again = home.request("POST", f"/api/pipes/{name}/executions/{first}/retry")
    assert (again.status, again.json()["kind"]) == (404, "unknown_unit")


def all_dead_of(written: Path) -> bool:
    return all_dead([int(line.split()[1]) for line in written.read_text().splitlines()])


def test_a_pipe_is_installed_whole_disabled_and_checked_or_not_at_all(home: House) -> None:
    source = home.home / "elsewhere" / "brought"
    source.mkdir(parents=True)
    (source / "pipe.md").write_text("---\nschedule: every 10s\nagent: fake\n# kept\n---\nFAKE: answer:brought\n")
    (source / "more.txt").write_text("beside it")
    added = home.pxctl("pipe", "add", str(source), "--json")
    assert added.returncode == 0, added.stderr
    folder = folder_of(home, "brought")
    assert "enabled: false" in (folder / "pipe.md").read_text()
    assert "# kept" in (folder / "pipe.md").read_text()
    assert (folder / "more.txt").read_text() == "beside it"
    assert (pipe(home, "brought")["enabled"], pipe(home, "brought")["next_run"]) == (False, None)
    assert home.pxctl("pipe", "add", str(source)).returncode == 8, "it is never overwritten"
    (source / "pipe.md").write_text("---\nschedule: 9:30\n---\nx\n")
    refused = home.pxctl("pipe", "add", str(source), "--name", "other")
    assert (refused.returncode, folder_of(home, "other").exists()) == (2, False), refused.stderr
    assert "'9:30' is no schedule" in refused.stderr
    plain = home.pxctl("pipe", "add", "http://127.0.0.1:1/pipe.md")
    assert plain.returncode != 0
    assert "https" in plain.stderr
    assert home.pxctl("pipe", "add", "example:disk-digest").returncode == 0
    assert not [each for each in os.listdir(home.home / "pipes") if each.startswith(".")], (
        "nothing half-made lies about"
    )
    assert run(home, "disk-digest").ended == ("completed", None), "an example works without agent and network"
    assert home.pxctl("pipe", "new", "mine").returncode == 0
    assert (problem_of(home, "mine"), pipe(home, "mine")["schedule"]) == (None, "manual")
