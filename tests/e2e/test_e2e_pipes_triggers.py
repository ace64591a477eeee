"""What starts pipes, from outside: events once each, chains without rings; files broken, edited,
linked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e.house import server, until
from e2e.pipe_house import DONE, PipeHouse, pipes_house, put
from rounds import mostly_deep

WAITS = "while [ ! -e go ]; do sleep 0.02; done; echo gone on"


@pytest.fixture(scope="module")
def home() -> Iterator[PipeHouse]:
    slots = {"PX_PIPES__SLOTS_SCHEDULED": "3", "PX_PIPES__SLOTS_EVENT": "3"}
    with pipes_house(**slots, PX_TOOLS__WARM_KEEP_MAX="1") as made:
        yield made
        made.nothing_left()


def waits_for(
    home: PipeHouse, name: str, *patterns: str, script: str = "echo heard", front: str = ""
) -> None:
    """Write an enabled pipe that events start, and wait until the daemon knows them."""
    home.shell(
        name, script, f"schedule: manual\ntrigger: {{events: {json.dumps(patterns)}}}\n{front}"
    )
    until(
        lambda: name in home.names() and home.pipe(name)["events"] == list(patterns),
        f"{name} is known",
    )


def tell(home: PipeHouse, name: str, **members: Any) -> dict[str, Any]:
    return home.post(f"/api/events/{name}", members, 202)


def test_an_event_with_a_key_starts_each_pipe_once_however_often_it_is_told(
    home: PipeHouse,
) -> None:
    for name in ("ear", "other-ear"):
        waits_for(home, name, "order_paid", "order_sent")
    with ThreadPoolExecutor(8) as tellers:
        answers = list(
            tellers.map(lambda _: tell(home, "order_paid", key="o-1", data={"total": 7}), range(8))
        )
    claimed = [each for answer in answers for each in answer["claimed"]]
    suppressed = [each["why"] for answer in answers for each in answer["suppressed"]]
    assert sorted(each["pipe"] for each in claimed) == ["ear", "other-ear"]
    assert suppressed == ["it has taken this event before"] * 14
    (found,) = home.of("ear", 1)
    assert found.id in {each["execution"] for each in claimed}
    assert (found.trigger, found.group, found.ended) == ("event", "event", DONE)
    assert (found.trigger_event, found.trigger_key) == ("order_paid", "o-1")
    told = next(line for line in found.rendered_prompt.splitlines() if line.startswith("Trigger: "))
    assert json.loads(told.removeprefix("Trigger: "))["data"] == {"total": 7}
    # Another key, none (each is another one), another event with that key.
    for name, members in (
        ("order_paid", {"key": "o-2"}),
        ("order_paid", {}),
        ("order_sent", {"key": "o-1"}),
    ):
        assert len(tell(home, name, **members)["claimed"]) == 2
    assert tell(home, "nobody-waits-for-this") == {
        "schema": "px.event-claims/1",
        "claimed": [],
        "suppressed": [],
    }
    for name in ("ear", "other-ear"):
        assert [each.ended for each in home.of(name, 4)] == [DONE] * 4


def test_a_pipe_follows_another_and_a_ring_is_not_entered_twice(home: PipeHouse) -> None:
    waits_for(home, "ring-a", "pipe_completed:ring-b")
    waits_for(home, "ring-b", "pipe_completed:ring-a")
    first = home.execute("ring-a")
    (second,) = home.of("ring-b", 1)
    assert (second.trigger_event, second.trigger_key) == ("pipe_completed:ring-a", str(first.id))
    assert f'"execution": {first.id}' in second.rendered_prompt
    told = until(lambda: home.pipe("ring-a")["last_decision"], "who made the ring is told")
    assert (
        told["text"]
        == "not started by pipe_completed:ring-b: it had a part in it: ring-a -> ring-b -> ring-a"
    )
    assert [len(home.rows(f"pipe={name}")) for name in ("ring-a", "ring-b")] == [1, 1]


def test_a_tool_that_dies_and_a_file_that_changes_are_events(home: PipeHouse) -> None:
    waits_for(home, "tool-nurse", "tool_failed:mortal")
    home.tool("mortal", server("import os; os._exit(3)"))
    until(
        lambda: any(each["name"] == "mortal" for each in home.get("/api/tools")["tools"]),
        "the tool is known",
    )
    assert home.run("mortal").status >= 500
    (nursed,) = home.of("tool-nurse", 1)
    assert (nursed.trigger_event, nursed.ended) == ("tool_failed:mortal", DONE)
    inbox = home.home / "inbox"
    inbox.mkdir()
    waits_for(
        home, "reader", f"file_changed:{inbox}/*.txt", script="cat; ls -1 >/dev/null; touch own.txt"
    )
    # the folder is watched a moment after a pipe is known
    waits_for(home, "sounder", f"file_changed:{inbox}/*.sound")
    until(lambda: put(inbox / "a.sound", "?") or home.rows("pipe=sounder"), "the folder is watched")
    until(lambda: home.events("pipe:reader", "pipe_added"), "the reader is known")
    put(inbox / "letter.txt", "one")
    (first,) = home.of("reader", 1)
    assert (
        str(inbox / "letter.txt") in first.trigger_key,
        str(inbox / "letter.txt") in first.stdout,
    ) == (True, True)
    put(inbox / "letter.log", "no matter")
    put(inbox / "letter.txt", "another one")
    assert len(home.of("reader", 2)) == 2


def test_one_execution_of_a_pipe_at_a_time(home: PipeHouse) -> None:
    folder = home.shell("one", WAITS)
    first = home.begin("one")
    pid = home.started(first.id).pid
    problem = home.post("/api/pipes/one/run", {}, 409)
    known = {name: problem[name] for name in ("kind", "execution", "pid", "unit")}
    assert known == {"kind": "conflict", "execution": first.id, "pid": pid, "unit": "pipe:one"}
    done = home.pxctl("pipe", "run", "one")
    assert (
        done.returncode,
        str(first.id) in done.stderr,
        "pxctl pipe tail" in problem["hint"],
    ) == (8, True, True)
    second, third = home.begin("one", queue=True), home.begin("one", queue=True)
    assert [second.position, third.position] == [1, 2]
    queue = {each["group"]: each for each in home.json("pipe", "queue")["groups"]}["manual"]
    assert ([each["id"] for each in queue["running"]], queue["slots"]) == ([first.id], 8)
    assert [(each["id"], each["position"]) for each in queue["waiting"]] == [
        (second.id, 1),
        (third.id, 2),
    ]
    assert home.pxctl("pipe", "cancel", str(second.id)).returncode == 0
    assert home.row(third.id).position == 1
    (folder / "go").touch()
    assert [home.ended(it.id).status for it in (first, second, third)] == [
        "completed",
        "cancelled",
        "completed",
    ]


def test_a_pipe_tells_of_the_failures_of_others(home: PipeHouse) -> None:
    assert home.pxctl("pipe", "add", "example:tell-failure").returncode == 0
    assert home.pxctl("pipe", "enable", "tell-failure").returncode == 0
    home.fake("unlucky", "fail:401")
    failed = [home.execute("unlucky").id for _ in range(2)]
    assert home.pipe("unlucky")["consecutive_failures"] == 2
    told = home.of("tell-failure", 2)
    assert home.pxctl("pipe", "disable", "tell-failure").returncode == 0
    said = [f"pipe:unlucky failed: auth_failed (execution {number})\n" for number in failed]
    assert [(each.ended, each.stdout) for each in told] == [(DONE, words) for words in said]
    home.fake("unlucky", "answer:fine")
    home.execute("unlucky")
    assert home.pipe("unlucky")["consecutive_failures"] == 0


# -- files as people treat them --------------------------------------------------------------------


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
        assert [home.request("GET", f"/api/{path}").status for path in ("health", "status")] == [
            200,
            200,
        ]
        failed = [
            each["detail"] for each in home.get("/api/doctor")["checks"] if each["status"] == "fail"
        ]
        for told in (failed, home.post("/api/daemon/reload")["warnings"]):
            assert all(any(str(file) in each for each in told) for file in (presets, agents)), told
        assert home.execute("modelless").ended == DONE
    finally:
        presets.unlink()
        agents.write_text(before)


def test_an_edit_goes_through_a_link_and_touches_nothing_else(home: PipeHouse) -> None:
    text = (
        "---\r\n# mine\r\nschedule:   manual   # by hand\r\nunknown: {a: "
        "1}\r\n---\r\nx\r\nschedule: daily\r\n"
    )
    real, folder = home.home / "dotfiles" / "linked.md", home.folder("linked")
    real.parent.mkdir()
    real.write_bytes(text.encode())
    folder.mkdir()
    (folder / "pipe.md").symlink_to(real)
    until(lambda: "linked" in home.names(), "it is seen")
    config = "/api/pipes/linked/config"
    home.post(config, {"schedule": "every 2h", "title": "a: b"})
    after = text.replace("manual ", "every 2h ").replace(
        "{a: 1}\r\n", "{a: 1}\r\ntitle: 'a: b'\r\n"
    )
    assert ((folder / "pipe.md").is_symlink(), real.read_bytes().decode()) == (True, after)
    assert (home.pipe("linked")["schedule"], home.pipe("linked")["title"]) == ("every 2h", "a: b")
    assert home.post(config, {"schedule": "continuous"}, 422)["kind"] == "config_error"
    assert real.read_bytes().decode() == after, "what would break it is not written"
    real.write_bytes(text.replace("manual", "every 5h").encode())
    until(lambda: home.pipe("linked")["schedule"] == "every 5h", "an edit behind the link is seen")
