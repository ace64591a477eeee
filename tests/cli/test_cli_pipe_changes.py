"""The commands that change pipes: new, add, remove, config, enable and its like, cancel."""

from __future__ import annotations

import pytest

from cli.fake_daemon import FakeDaemon, document, problem, results
from cli.pipe_documents import execution, on_execution, pipe
from cli.px import Px

STOP = "POST /api/units/stop"
CONFIG = "POST /api/pipes/digest/config"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("example:disk-digest", "example:disk-digest"),
        ("https://example.org/p/pipe.md", "https://example.org/p/pipe.md"),
        ("ftp://example.org/pipe.md", "ftp://example.org/pipe.md"),
        ("folder", "{cwd}/folder"),
    ],
)
def test_add_sends_paths_in_full_and_other_sources_as_they_are(
    px: Px, daemon: FakeDaemon, given: str, sent: str
) -> None:
    daemon.on("POST /api/pipes", document(pipe(enabled=False, warnings=["odd"]), status="201 Created"))
    ended = px("pipe", "add", given, "--name", "digest")
    assert ended.text == "pipe:digest added in /p/digest, disabled\n"
    assert ended.err.splitlines()[0] == "warning: odd"
    assert daemon.seen[0].json() == {"source": sent.format(cwd=px.folder), "name": "digest"}


def test_remove_asks_on_a_terminal_and_nowhere_else(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("DELETE /api/pipes/digest", document({"schema": "px.removed/1", "unit": "pipe:digest", "removed": True}))
    ended = px("pipe", "remove", "digest")
    assert (ended.code, "hint: pxctl pipe remove digest --yes" in ended.err) == (2, True)
    assert daemon.seen == []
    assert px("pipe", "remove", "digest", "--yes").text == "pipe:digest removed\n"
    assert px("pipe", "remove", "digest", "--yes", "--json").json()["removed"] is True
    with px.terminal("pipe", "remove", "digest") as screen:
        screen.see("Remove pipe:digest and its folder? [y/N] ")
        screen.type("n\n")
        assert screen.end() == 1
    with px.terminal("pipe", "remove", "digest") as screen:
        screen.see("[y/N] ")
        screen.type("y\n")
        assert screen.end() == 0
    assert len(daemon.seen) == 3


def test_what_is_changed_or_removed_by_a_glob_is_called_by_its_name(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/pipes/dig*", document(pipe())).on(CONFIG, document(pipe()))
    assert px("pipe", "config", "dig*", "title=x").text == "pipe:digest: title set\n"
    ended = px("pipe", "remove", "pipe:dig*")
    assert (ended.code, "hint: pxctl pipe remove digest --yes" in ended.err) == (2, True)
    told = problem(400, "ambiguous_name", 2, detail="fits 2 units", candidates=["pipe:a", "pipe:b"])
    daemon.on("GET /api/pipes/*", told)
    assert px("pipe", "remove", "*", "--yes").code == 2
    assert "DELETE" not in {request.method for request in daemon.seen}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("schedule=*/5 * * * *", "*/5 * * * *"), ("schedule=9:30", "9:30"), ("timeout=600", 600),
        ("enabled=false", False), ('preset=["a", "*"]', ["a", "*"]), ('title="A: b"', "A: b"),
        ("cost=NaN", "NaN"), ("query=a=b", "a=b"), ("timezone=", None), ("timezone=null", None),
    ],
)  # fmt: skip
def test_config_values_are_json_where_they_read_as_such(px: Px, daemon: FakeDaemon, given: str, sent: object) -> None:
    daemon.on(CONFIG, document(pipe()))
    key = given.partition("=")[0]
    ended = px("pipe", "config", "digest", given)
    assert (ended.code, ended.text) == (0, f"pipe:digest: {key} {'removed' if sent is None else 'set'}\n")
    assert daemon.seen[0].json() == {"config": {key: sent}}


@pytest.mark.parametrize(("verb", "words"), [("enable", "enabled; next run "), ("disable", "disabled")])
def test_pipes_are_switched_by_name_and_by_glob(px: Px, daemon: FakeDaemon, verb: str, words: str) -> None:
    daemon.on("GET /api/units", document({"units": [{"unit": "pipe:daily-a"}, {"unit": "pipe:digest"}]}))
    for name in ("digest", "daily-a"):
        daemon.on(f"POST /api/pipes/{name}/{verb}", document(pipe(name, next_run="2030-01-01T00:00:00Z")))
    ended = px("pipe", verb, "digest", "d*")
    assert [
        line.startswith(f"pipe:{name} {words}") for name, line in zip(("digest", "daily-a"), ended.lines, strict=True)
    ]
    assert daemon.asked("GET /api/units")[0].query == [("name", "pipe:d*")]
    assert px("pipe", verb, "digest", "-q").text == "digest\n"
    assert px("pipe", verb, "digest", "--json").json()["name"] == "digest"


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_cancel_takes_ids_and_pipes(px: Px, daemon: FakeDaemon) -> None:
    on_execution(daemon, execution(12, "running"))
    daemon.on("POST /api/pipes/digest/executions/12/cancel", document(execution(12, "cancelled")))
    daemon.on(STOP, results(pipe__diary={"executions": [execution(7, "cancelled", pipe_name="diary")]}))
    ended = px("pipe", "cancel", "diary", "12")
    assert ended.lines == ["pipe:digest execution 12 cancelled", "pipe:diary execution 7 cancelled"]
    assert px("pipe", "cancel", "12", "-q").text == "12\n"
    told = px("pipe", "cancel", "12", "diary", "--json").json()
    assert [one["answer"]["executions"][0]["id"] for one in told["results"]] == [12, 7]
    daemon.on(STOP, results(pipe__diary={"executions": []}))
    assert (px("pipe", "cancel", "diary").code, px("pipe", "cancel", "diary").err) == (
        0, "pipe:diary: nothing runs and nothing waits\n"
    )  # fmt: skip
