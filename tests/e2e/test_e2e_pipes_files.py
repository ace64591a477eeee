"""pipe.md as people treat it: broken in every way, edited under the daemon's eyes, linked, moved away in mid-run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.house import until
from e2e.pipe_house import DONE, PipeHouse, pipes_house
from rounds import mostly_deep


@pytest.fixture(scope="module")
def home() -> Iterator[PipeHouse]:
    with pipes_house() as made:
        yield made
        made.nothing_left()


def problem_of(home: PipeHouse, name: str) -> str:
    return str(home.pipe(name)["config_error"] or "")


def test_what_is_broken_is_told_with_its_line_and_its_cure_on_every_surface(home: PipeHouse) -> None:
    home.write("star", "schedule: */30 * * * *")
    until(lambda: "star" in home.names() and problem_of(home, "star"), "it is told")
    found, cure = problem_of(home, "star"), "quote it: schedule: '*/30 * * * *'"
    assert found.startswith(f"{home.folder('star') / 'pipe.md'}:2: "), found
    assert (cure in found, home.pipe("star")["next_run"], home.get("/api/health")["pipes"]["broken"]) == (True, None, 1)
    answer = home.asked("star")
    problem = answer.json()
    assert (answer.status, problem["kind"], problem["line"], problem["unit"]) == (422, "config_error", 2, "pipe:star")
    checked = home.pxctl("pipe", "validate", "star")
    assert (checked.returncode, cure in checked.stdout, home.unit("pipe:star")["config_error"]) == (1, True, found)
    assert home.rows("pipe=star") == []


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
        for told in (failed, home.post("/api/daemon/reload")["warnings"]):
            assert all(any(str(file) in each for each in told) for file in (presets, agents)), told
        assert home.execute("modelless").ended == DONE
    finally:
        presets.unlink()
        agents.write_text(before)


def test_a_default_preset_that_is_broken_fails_who_would_take_it_and_no_other_model_runs(home: PipeHouse) -> None:
    file = home.home / "presets.toml"
    home.fake("takes-default", "answer:fine")
    home.fake("has-own", "answer:fine", front="model: own-model\nprovider: own")
    file.write_text('[presets.main]\nprovider = "anthropic"\nmodle = "x"\ndefault = true\n')
    until(lambda: {"takes-default", "has-own"} <= home.names(), "both are listed")
    told = until(lambda: problem_of(home, "takes-default"), "the fault is told")
    assert (f"{file}:3" in told, "modle" in told, problem_of(home, "has-own")) == (True, True, ""), told
    done = home.execute("takes-default")
    assert (done.ended, done.started_at) == (("failed", "config_error"), None)
    checked = home.pxctl("pipe", "validate", "takes-default")
    assert (checked.returncode, "modle" in checked.stdout) == (1, True), checked.stdout
    faults = [each["detail"] for each in home.get("/api/doctor")["checks"] if each["name"] == "presets"]
    assert [each for each in faults if f"{file}:3" in each], faults
    assert f"{file}:3" in home.pxctl("daemon", "reload").stderr
    file.write_text('[presets.main]\nprovider = "acme"\nmodel = "x-large"\ndefault = true\n')
    until(lambda: not problem_of(home, "takes-default"), "it is mended")
    checked = home.pxctl("pipe", "validate", "takes-default")
    assert (checked.returncode, "main" in checked.stdout, "x-large" in checked.stdout) == (0, True, True)
    file.unlink()


def test_an_edit_goes_through_a_link_and_touches_nothing_else(home: PipeHouse) -> None:
    text = "---\r\n# mine\r\nschedule:   manual   # by hand\r\nunknown: {a: 1}\r\n---\r\nx\r\nschedule: daily\r\n"
    real, folder = home.home / "dotfiles" / "linked.md", home.folder("linked")
    real.parent.mkdir()
    real.write_bytes(text.encode())
    folder.mkdir()
    (folder / "pipe.md").symlink_to(real)
    until(lambda: "linked" in home.names(), "it is seen")
    config = "/api/pipes/linked/config"
    home.post(config, {"schedule": "every 2h", "title": "a: b"})
    after = text.replace("manual ", "every 2h ").replace("{a: 1}\r\n", "{a: 1}\r\ntitle: 'a: b'\r\n")
    assert ((folder / "pipe.md").is_symlink(), real.read_bytes().decode()) == (True, after)
    assert (home.pipe("linked")["schedule"], home.pipe("linked")["title"]) == ("every 2h", "a: b")
    assert home.post(config, {"schedule": "continuous"}, 422)["kind"] == "config_error"
    slip = home.post(config, {"schedul": "every 5h"}, 422)
    assert (slip["pointer"], "did you mean 'schedule'" in slip["detail"]) == ("/schedul", True)
    assert real.read_bytes().decode() == after, "what would break it is not written"
    assert home.post(config, {"title": None})["title"] is None
    real.write_bytes(text.replace("manual", "every 5h").encode())
    until(lambda: home.pipe("linked")["schedule"] == "every 5h", "an edit behind the link is seen")
